// The model's own chat_template: the loss mask is found in what it renders.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "longspan/config/user_error.h"
#include "longspan/data/bad_rows.h"
#include "longspan/data/function_calls.h"
#include "longspan/data/turns.h"
#include "longspan/input/json_text.h"
#include "longspan/text/chat_template.h"

namespace longspan {

namespace {

using nlohmann::ordered_json;

/// As in transformers: absent tools and documents are None, special tokens are given by name.
ordered_json template_variables(const Tokenizer& tokenizer, const Moment& moment) {
  ordered_json variables = {
      {"tools", nullptr}, {"documents", nullptr}, {"strftime_now", moment.text}};
  const auto add = [&](const char* name, const std::optional<std::string>& token) {
    if (token) variables[name] = *token;
  };
  add("bos_token", tokenizer.bos_token());
  add("eos_token", tokenizer.eos_token());
  add("pad_token", tokenizer.pad_token());
  add("unk_token", tokenizer.unk_token());
  return variables;
}

/// Names of templates that a model with this tokenizer may have been made with, as advice.
std::string fitting_templates(const Tokenizer& tokenizer) {
  const bool chatml = tokenizer.id_of("<|im_end|>").has_value();
  if (chatml && tokenizer.id_of("<think>")) {
    return "`template: qwen3` (answers begin with thoughts, if only empty ones) or `template: "
           "qwen3_nothink`";
  }
  if (chatml) return "`template: qwen` or `template: chatml`";
  return tokenizer.id_of("<|eot_id|>") ? "`template: llama3`" : "`template: default`";
}

/// An answer's place in the rendered text, in bytes.
struct Span {
  size_t begin, end;
};

ordered_json as_template_message(const Message& message, const std::string& place) {
  if (message.role == Role::kObservation) return {{"role", "tool"}, {"content", message.content}};
  if (message.role != Role::kFunction) {
    return {{"role", name_of(message.role)}, {"content", message.content}};
  }
  ordered_json calls = ordered_json::array();
  for (const FunctionCall& call : parse_function_calls(message.content, place)) {
    calls.push_back(
        {{"type", "function"},
         {"function",
          {{"name", call.name}, {"arguments", parse_ordered_json(call.arguments, place)}}}});
  }
  return {{"role", "assistant"}, {"content", ""}, {"tool_calls", calls}};
}

class ModelTemplate : public TurnEncoder {
 public:
  ModelTemplate(const Tokenizer& tokenizer, const std::optional<std::string>& default_system,
                bool enable_thinking, const Moment& moment)
      : tokenizer_(tokenizer), default_system_(default_system.value_or("")) {
    if (!tokenizer.chat_template()) {
      throw UserError(fmt::format(
          "the model has no chat_template in its folder: name a template, for example {}",
          fitting_templates(tokenizer)));
    }
    chat_template_ = *tokenizer.chat_template();
    variables_ = template_variables(tokenizer, moment);
    // Templates take an absent enable_thinking for true.
    if (!enable_thinking) variables_["enable_thinking"] = false;
  }

  std::vector<Turn> turns(const Conversation& conversation) const override {
    const ordered_json messages = template_messages(conversation);
    const RenderedChat chat = render(messages, false, conversation.source);
    std::vector<Span> answers;
    for (const GenerationSpan& span : chat.generation) answers.push_back({span.begin, span.end});
    if (answers.empty()) answers = rendered_answers(messages, chat.text, conversation.source);
    return cut(tokenizer_.encode_with_offsets(chat.text), answers);
  }

  std::vector<int32_t> question(const Conversation& conversation) const override {
    return tokenizer_.encode(
        render(template_messages(conversation), true, conversation.source).text);
  }

  std::optional<int32_t> turn_end() const override {
    constexpr std::string_view kAnswer = "longspan:answer";
    const ordered_json chat = {{{"role", "user"}, {"content", "?"}},
                               {{"role", "assistant"}, {"content", kAnswer}}};
    const std::string text = render(chat, false, "").text;
    const size_t answer = text.rfind(kAnswer);
    if (answer == std::string::npos) return std::nullopt;
    const size_t after = text.find_first_not_of(" \n", answer + kAnswer.size());
    if (after == std::string::npos) return std::nullopt;
    return leading_special(tokenizer_, tokenizer_.encode(text.substr(after)));
  }

 private:
  ordered_json template_messages(const Conversation& conversation) const {
    ordered_json messages = ordered_json::array();
    const bool has_system =
        !conversation.messages.empty() && conversation.messages[0].role == Role::kSystem;
    if (!has_system && !default_system_.empty()) {
      messages.push_back({{"role", "system"}, {"content", default_system_}});
    }
    for (const Message& message : conversation.messages) {
      messages.push_back(as_template_message(message, conversation.source));
    }
    return messages;
  }

  RenderedChat render(const ordered_json& messages, bool add_generation_prompt,
                      const std::string& place) const {
    ordered_json variables = variables_;
    variables["messages"] = messages;
    variables["add_generation_prompt"] = add_generation_prompt;
    try {
      return render_chat_template(chat_template_, variables.dump());
    } catch (const ordered_json::type_error&) {
      throw RowError(fmt::format(
          "{}a message is no text in UTF-8. Write the file in UTF-8, or remove what is broken.",
          place.empty() ? "" : place + ": "));
    } catch (const UserError& error) {
      throw RowError(fmt::format("{}the model's chat_template refuses the row: {}",
                                 place.empty() ? "" : place + ": ", error.what()));
    }
  }

  std::vector<Span> rendered_answers(const ordered_json& messages, const std::string& text,
                                     const std::string& place) const {
    std::vector<Span> answers;
    ordered_json so_far = ordered_json::array();
    for (const auto& message : messages) {
      const bool is_answer = message.at("role") == "assistant";
      const std::string before = is_answer ? render(so_far, true, place).text : "";
      so_far.push_back(message);
      if (!is_answer) continue;
      const std::string after =
          so_far.size() == messages.size() ? text : render(so_far, false, place).text;
      if (!text.starts_with(before) || !text.starts_with(after) || after.size() < before.size()) {
        throw UserError(fmt::format(
            "{}: the model's chat_template writes the beginning of a conversation differently once "
            "more messages follow, so it does not say which tokens are answers (message {}). Name "
            "a template, for example {}.",
            place, so_far.size(), fitting_templates(tokenizer_)));
      }
      answers.push_back({before.size(), after.size()});
    }
    return answers;
  }

  /// A token that holds any of an answer's text belongs to the answer.
  static std::vector<Turn> cut(const EncodedText& text, const std::vector<Span>& answers) {
    std::vector<Turn> turns;
    const size_t size = text.ids.size();
    size_t at = 0;
    for (const Span& answer : answers) {
      size_t begin = at;
      while (begin < size && text.end[begin] <= answer.begin) ++begin;
      size_t end = begin;
      while (end < size && text.begin[end] < answer.end) ++end;
      Turn& turn = turns.emplace_back();
      turn.source.assign(text.ids.begin() + at, text.ids.begin() + begin);
      turn.target.assign(text.ids.begin() + begin, text.ids.begin() + end);
      turn.target_labels = turn.target;
      at = end;
    }
    if (turns.empty()) turns.emplace_back();
    // What follows the last answer stays in the row, untrained.
    turns.back().target.insert(turns.back().target.end(), text.ids.begin() + at, text.ids.end());
    turns.back().target_labels.resize(turns.back().target.size(), kIgnoreLabel);
    return turns;
  }

  Tokenizer tokenizer_;
  std::string default_system_, chat_template_;
  ordered_json variables_;
};

}  // namespace

std::string rendered_prompt(const std::string& chat_template, const Tokenizer& tokenizer,
                            const std::optional<std::string>& eos_token,
                            const Conversation& conversation, const Moment& moment) {
  ordered_json variables = template_variables(tokenizer, moment);
  if (eos_token) variables["eos_token"] = *eos_token;
  variables["messages"] = ordered_json::array();
  for (const Message& message : conversation.messages) {
    variables["messages"].push_back(as_template_message(message, conversation.source));
  }
  variables["add_generation_prompt"] = true;
  return render_chat_template(chat_template, variables.dump()).text;
}

std::unique_ptr<TurnEncoder> make_model_template(const Tokenizer& tokenizer,
                                                 const std::optional<std::string>& default_system,
                                                 bool enable_thinking, const Moment& moment) {
  return std::make_unique<ModelTemplate>(tokenizer, default_system, enable_thinking, moment);
}

}  // namespace longspan
