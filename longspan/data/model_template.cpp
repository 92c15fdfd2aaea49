// Turns by the model's own chat_template. The loss mask is found in the rendered text.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string_view>

#include "longspan/base/user_error.h"
#include "longspan/data/answer_spans.h"
#include "longspan/data/bad_rows.h"
#include "longspan/data/located_chat.h"
#include "longspan/data/row_lists.h"
#include "longspan/data/template_messages.h"
#include "longspan/data/turns.h"
#include "longspan/input/json_text.h"
#include "longspan/text/chat_template.h"
#include "longspan/text/shown.h"

namespace longspan {

namespace {

using nlohmann::ordered_json;

/// Variables as in transformers: missing tools and documents are None, special tokens are named.
ordered_json template_variables(const Tokenizer& tokenizer, const LocalTime& template_time) {
  ordered_json variables = {
      {"tools", nullptr}, {"documents", nullptr}, {"strftime_now", template_time.text}};
  const auto add = [&](const char* name, const std::optional<std::string>& token) {
    if (token) variables[name] = *token;
  };
  add("bos_token", tokenizer.bos_token());
  add("eos_token", tokenizer.eos_token());
  add("pad_token", tokenizer.pad_token());
  add("unk_token", tokenizer.unk_token());
  return variables;
}

/// Advice on `template` for a tokenizer without a chat template.
std::string fitting_templates(const Tokenizer& tokenizer) {
  const bool chatml = tokenizer.id_of("<|im_end|>").has_value();
  if (chatml && tokenizer.id_of("<think>")) {
    return "`template: qwen3` (answers begin with thoughts, if only empty ones) or `template: "
           "qwen3_nothink`";
  }
  if (chatml) return "`template: qwen` or `template: chatml`";
  if (tokenizer.id_of("<|eot_id|>")) return "`template: llama3`";
  return "the one that the model was made with (`longspan help template` lists them), or for a "
         "base model `template: default`";
}

class ModelTemplate : public TurnEncoder {
 public:
  ModelTemplate(const Tokenizer& tokenizer, const std::optional<std::string>& default_system,
                const TemplateSwitches& switches, const LocalTime& template_time)
      : tokenizer_(tokenizer), default_system_(default_system.value_or("")) {
    if (!tokenizer.chat_template()) {
      throw UserError(fmt::format(
          "the model has no chat_template in its folder: name a template, for example {}",
          fitting_templates(tokenizer)));
    }
    chat_template_ = *tokenizer.chat_template();
    variables_ = template_variables(tokenizer, template_time);
    if (switches.enable_thinking) variables_["enable_thinking"] = *switches.enable_thinking;
    if (switches.preserve_thinking) variables_["preserve_thinking"] = true;
    find_ends_of_template();
    ends_ = tokenizer.end_tokens();
    ends_.insert(turn_ends_.begin(), turn_ends_.end());
  }

  std::vector<Turn> turns(const Conversation& conversation) const override {
    const LocatedChat chat = locate(conversation, /*generation_prompt=*/false);
    const EncodedText tokens = tokenizer_.encode_with_offsets(chat.text());
    const size_t first = first_message_of(conversation);
    std::vector<size_t> answers;  // indices in the chat
    for (size_t i = 0; i < conversation.messages.size(); ++i) {
      if (is_answer(conversation.messages[i].role)) answers.push_back(first + i);
    }
    std::vector<AnswerTokens> spans;
    for (const GenerationSpan& span : chat.generation()) {
      spans.push_back(answer_tokens(tokens, spans, span.begin, span.end));
    }
    const bool marked = !spans.empty();
    if (!marked) spans = answer_spans(chat, tokens, answers, ends_);
    std::vector<Turn> turns = cut(tokens.ids, spans);
    if (marked && !answers.empty()) {
      std::vector<size_t> whose;
      for (const AnswerTokens& span : spans) {
        whose.push_back(answer_at(chat, answers, tokens, span));
      }
      join(turns, whose);
      answers = whose;
    }
    for (size_t i = 0; i < answers.size(); ++i) {
      const size_t message = answers[i];
      const Message& answer = conversation.messages[message - first];
      Turn& turn = turns[i];
      turn.lost_thoughts = chat.lost_thoughts(message);
      turn.is_trained = answer.is_trained;
      if (!answer.is_trained) std::ranges::fill(turn.target_labels, int32_t{kIgnoreLabel});
    }
    const bool ends_with_answer = !answers.empty() && is_answer(conversation.messages.back().role);
    if (!marked && ends_with_answer) add_end(conversation.messages.back(), turns.back());
    return turns;
  }

  std::vector<int32_t> question(const Conversation& conversation) const override {
    return tokenizer_.encode(locate(conversation, /*generation_prompt=*/true).text());
  }

  std::vector<int32_t> turn_ends() const override { return turn_ends_; }

  std::optional<int32_t> added_end() const override { return writes_end_ ? std::nullopt : eos(); }

 private:
  /// Finds the token that the template prints after an answer. Where it prints none, takes the
  /// tokens with which messages of users and tools begin, since models of such families stop at
  /// those.
  void find_ends_of_template() {
    constexpr std::string_view kAnswer = "longspan:answer", kNext = "longspan:next";
    const ordered_json chat = {{{"role", "user"}, {"content", "?"}},
                               {{"role", "assistant"}, {"content", kAnswer}}};
    const auto token_behind = [&](const ordered_json& messages) -> std::optional<int32_t> {
      std::string text;
      try {
        text = render(messages, false, {}, "").text;
      } catch (const RowError&) {
        return std::nullopt;  // the template has no tools
      }
      const size_t answer = text.rfind(kAnswer);
      if (answer == std::string::npos) return std::nullopt;
      const size_t after = text.find_first_not_of(" \n", answer + kAnswer.size());
      if (after == std::string::npos) return std::nullopt;
      return leading_special(tokenizer_, tokenizer_.encode(text.substr(after)));
    };
    if (const auto end = token_behind(chat)) {
      turn_ends_ = {*end};
      writes_end_ = true;
      return;
    }
    for (const char* role : {"user", "tool"}) {
      ordered_json longer = chat;
      longer.push_back({{"role", role}, {"content", kNext}});
      const auto marker = token_behind(longer);
      if (marker && std::ranges::find(turn_ends_, *marker) == turn_ends_.end()) {
        turn_ends_.push_back(*marker);
      }
    }
  }

  /// Returns the number of messages before the conversation's: 1 for a default system message.
  size_t first_message_of(const Conversation& conversation) const {
    const bool has_system =
        !conversation.messages.empty() && conversation.messages[0].role == Role::kSystem;
    return !has_system && !default_system_.empty();
  }

  ordered_json template_messages(const Conversation& conversation, const CallShape& shape) const {
    ordered_json messages = ordered_json::array();
    if (first_message_of(conversation) == 1) {
      messages.push_back({{"role", "system"}, {"content", default_system_}});
    }
    for (const Message& message : conversation.messages) {
      messages.push_back(template_message(message, shape, conversation.source));
    }
    return messages;
  }

  RenderedChat render(const ordered_json& messages, bool generation_prompt, const RowLists& lists,
                      const std::string& place) const {
    const std::string where = place.empty() ? "" : place + ": ";
    ordered_json variables = variables_;
    variables["messages"] = messages;
    variables["add_generation_prompt"] = generation_prompt;
    set_lists(variables, lists, place);
    try {
      return render_chat_template(chat_template_, variables.dump());
    } catch (const ordered_json::type_error&) {
      throw RowError(fmt::format(
          "{}a message is no text in UTF-8. Write the file in UTF-8, or remove what is broken.",
          where));
    } catch (const UserError& error) {
      throw RowError(
          fmt::format("{}the model's chat_template refuses the row: {}", where, error.what()));
    }
  }

  LocatedChat locate_shaped(const Conversation& conversation, bool generation_prompt,
                            const CallShape& shape) const {
    const auto render_row = [this, lists = lists_of(conversation), place = conversation.source,
                             pictures = printed_otherwise(conversation)](
                                const ordered_json& messages, bool prompt) {
      return with_picture_texts(render(messages, prompt, lists, place), pictures);
    };
    return LocatedChat(render_row, template_messages(conversation, shape), generation_prompt,
                       conversation.source);
  }

  /// Returns the first call that is not printed.
  std::optional<std::string> lost_call(const LocatedChat& chat,
                                       const Conversation& conversation) const {
    const size_t first = first_message_of(conversation);
    for (size_t i = 0; i < conversation.messages.size(); ++i) {
      const auto& calls = conversation.messages[i].calls;
      if (calls.empty() || chat.prints_calls(first + i)) continue;
      if (chat.is_marked(first + i)) return calls.front().name;
      const std::string text = chat.text_around(first + i);
      for (const FunctionCall& call : calls) {
        if (!is_printed_in(text, call)) return call.name;
      }
    }
    return std::nullopt;
  }

  /// Renders a conversation with its calls in the first form that the template prints.
  LocatedChat locate_calls(const Conversation& conversation, bool generation_prompt) const {
    std::optional<RowError> refusal;
    std::optional<std::string> lost;
    for (const CallShape& shape : call_shapes()) {
      try {
        LocatedChat chat = locate_shaped(conversation, generation_prompt, shape);
        const auto lost_here = lost_call(chat, conversation);
        if (!lost_here) return chat;
        if (!lost) lost = lost_here;
      } catch (const RowError& error) {
        if (!refusal) refusal = error;
      }
    }
    if (!lost) throw *refusal;
    fail(conversation, fmt::format("does not print the function calls of the row, or not all of "
                                   "them ({})",
                                   shortened(*lost, 60)));
  }

  /// Locates a conversation. Throws RowError as LocatedChat does, and where a call, a tool, a
  /// document or the last answer's thoughts are not printed.
  LocatedChat locate(const Conversation& conversation, bool generation_prompt) const {
    const bool calls = std::ranges::any_of(
        conversation.messages, [](const Message& message) { return !message.calls.empty(); });
    LocatedChat chat = calls
                           ? locate_calls(conversation, generation_prompt)
                           : locate_shaped(conversation, generation_prompt, call_shapes().front());
    require_lists(conversation, generation_prompt);
    require_last_thoughts(chat, conversation, generation_prompt);
    return chat;
  }

  /// Throws unless all tools and documents are printed. They are marked, since a message may have
  /// the same text.
  void require_lists(const Conversation& conversation, bool generation_prompt) const {
    const RowLists lists = lists_of(conversation);
    if (lists.empty()) return;
    const ordered_json messages = template_messages(conversation, call_shapes().front());
    const MarkedLists marked = marked_lists(lists, messages.dump(), conversation.source);
    std::string text;
    for (const CallShape& shape : call_shapes()) {
      try {
        text = render(template_messages(conversation, shape), generation_prompt, marked.lists,
                      conversation.source)
                   .text;
        break;
      } catch (const RowError&) {
        continue;  // tries another form of the calls
      }
    }
    for (const MarkedLists::Text& one : marked.texts) {
      if (text.find(one.mark) != std::string::npos) continue;
      fail(conversation, fmt::format("does not print the {}", one.what));
    }
  }

  void require_last_thoughts(const LocatedChat& chat, const Conversation& conversation,
                             bool generation_prompt) const {
    if (generation_prompt || conversation.messages.empty()) return;
    const size_t last = first_message_of(conversation) + conversation.messages.size() - 1;
    if (!chat.lost_thoughts(last)) return;
    fail(conversation, "does not print the thoughts of the last answer");
  }

  [[noreturn]] void fail(const Conversation& conversation, const std::string& problem) const {
    throw RowError(fmt::format(
        "{}the model's chat_template {}: they could not be trained. Remove them from the row, put "
        "a template that prints them into chat_template.jinja in the model's folder, or name a "
        "`template` that has them.",
        conversation.source.empty() ? "" : conversation.source + ": ", problem));
  }

  static std::vector<Turn> cut(const std::vector<int32_t>& ids,
                               const std::vector<AnswerTokens>& answers) {
    std::vector<Turn> turns;
    size_t at = 0;
    for (const AnswerTokens& answer : answers) {
      Turn& turn = turns.emplace_back();
      turn.source.assign(ids.begin() + at, ids.begin() + answer.begin);
      turn.target.assign(ids.begin() + answer.begin, ids.begin() + answer.end);
      turn.target_labels = turn.target;
      at = answer.end;
    }
    if (turns.empty()) turns.emplace_back();
    // The text after the last answer stays in the row, untrained.
    turns.back().target.insert(turns.back().target.end(), ids.begin() + at, ids.end());
    turns.back().target_labels.resize(turns.back().target.size(), kIgnoreLabel);
    return turns;
  }

  std::optional<int32_t> eos() const {
    if (!tokenizer_.eos_token()) return std::nullopt;
    return tokenizer_.id_of(*tokenizer_.eos_token());
  }

  /// Joins turns of the same answer, of which {% generation %} marks several parts. `messages`: the
  /// answer of each turn.
  static void join(std::vector<Turn>& turns, std::vector<size_t>& messages) {
    for (size_t i = 1; i < messages.size();) {
      if (messages[i] != messages[i - 1]) {
        ++i;
        continue;
      }
      Turn& whole = turns[i - 1];
      const Turn& part = turns[i];
      whole.target.insert(whole.target.end(), part.source.begin(), part.source.end());
      whole.target_labels.resize(whole.target.size(), kIgnoreLabel);
      whole.target.insert(whole.target.end(), part.target.begin(), part.target.end());
      whole.target_labels.insert(whole.target_labels.end(), part.target_labels.begin(),
                                 part.target_labels.end());
      turns.erase(turns.begin() + static_cast<std::ptrdiff_t>(i));
      messages.erase(messages.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }

  /// Ends the last answer where the template prints no end: after a call by the marker of a tool's
  /// message, else by eos_token. Servers stop there too.
  void add_end(const Message& answer, Turn& turn) const {
    if (!answer.is_trained || has_end(turn, ends_, tokenizer_)) return;
    // A special token is the template's own end of a call.
    if (!turn.target.empty() && leading_special(tokenizer_, {turn.target.back()})) return;
    std::optional<int32_t> end = eos();
    if (!answer.calls.empty() && turn_ends_.size() > 1) end = turn_ends_.back();
    if (!end) return;
    turn.target.push_back(*end);
    turn.target_labels.push_back(*end);
    turn.added_end = true;
  }

  Tokenizer tokenizer_;
  std::string default_system_, chat_template_;
  ordered_json variables_;
  std::vector<int32_t> turn_ends_;
  bool writes_end_ = false;  // after an answer
  std::set<int32_t> ends_;   // tokens that stop generation
};

}  // namespace

std::string rendered_prompt(const std::string& chat_template, const Tokenizer& tokenizer,
                            const std::optional<std::string>& eos_token,
                            const Conversation& conversation, const LocalTime& template_time) {
  ordered_json variables = template_variables(tokenizer, template_time);
  if (eos_token) variables["eos_token"] = *eos_token;
  variables["messages"] = ordered_json::array();
  for (const Message& message : conversation.messages) {
    variables["messages"].push_back(
        template_message(message, call_shapes().front(), conversation.source));
  }
  set_lists(variables, lists_of(conversation), conversation.source);
  variables["add_generation_prompt"] = true;
  return render_chat_template(chat_template, variables.dump()).text;
}

std::unique_ptr<TurnEncoder> make_model_template(const Tokenizer& tokenizer,
                                                 const std::optional<std::string>& default_system,
                                                 const TemplateSwitches& switches,
                                                 const LocalTime& template_time) {
  return std::make_unique<ModelTemplate>(tokenizer, default_system, switches, template_time);
}

}  // namespace longspan
