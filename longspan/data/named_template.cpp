// Turns by a named template of LLaMA-Factory.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "longspan/base/user_error.h"
#include "longspan/data/bad_rows.h"
#include "longspan/data/function_calls.h"
#include "longspan/data/template_format.h"
#include "longspan/data/tool_list.h"
#include "longspan/data/turns.h"
#include "longspan/input/json_text.h"
#include "longspan/registers/stage.h"
#include "longspan/settings/data_settings.h"

namespace longspan {

namespace {

std::string written_calls(const CallFormat& format, const std::vector<FunctionCall>& calls,
                          const std::string& place) {
  using enum CallFormat::Brackets;
  if (format.brackets == kOneCall && calls.size() > 1) {
    throw RowError(
        fmt::format("{}: the template writes one function call to an answer, and here are {}",
                    place, calls.size()));
  }
  std::string text;
  for (const FunctionCall& call : calls) {
    if (!text.empty()) text += format.between;
    text += format.before_name;
    text += format.quotes_name ? python_json_string(call.name) : call.name;
    text += format.before_arguments;
    if (format.before_key.empty()) {
      text += call.arguments;
    } else {
      for (const auto& [key, value] : argument_texts(call, place)) {
        text += fmt::format("{}{}{}{}{}", format.before_key, key, format.before_value, value,
                            format.after_value);
      }
    }
    text += format.after;
  }
  const bool brackets =
      format.brackets == kAll || (format.brackets == kOfSeveral && calls.size() != 1);
  return brackets ? fmt::format("[{}]", text) : text;
}

/// Removes the thoughts before an answer.
std::string without_thoughts(const Format& format, std::string text) {
  const std::string_view open = format.thoughts_begin, close = format.thoughts_close;
  for (size_t begin = 0; (begin = text.find(open, begin)) != std::string::npos;) {
    const size_t end = text.find(close, begin + open.size());
    if (end == std::string::npos) break;
    text.erase(begin, end + close.size() - begin);
  }
  return text.substr(std::min(text.find_first_not_of('\n'), text.size()));
}

std::string place_of(const Conversation& conversation) {
  return conversation.source.empty() ? "" : conversation.source + ": ";
}

/// Throws unless the messages are an optional system message, then questions and answers in turn,
/// with a question last.
void check_question(const Conversation& conversation, std::string_view template_name) {
  const std::vector<Message>& messages = conversation.messages;
  const std::string place = place_of(conversation);
  if (const auto wrong = first_out_of_turn(messages)) {
    throw UserError(fmt::format(
        "{}message {} is the {}'s, wanted is one of {}. Template {} takes a system message first, "
        "if any, then user (or results of tools) and assistant (or function_call) in turn. Join or "
        "remove messages, or leave the template out where the model's own takes such a "
        "conversation.",
        place, wrong->index + 1, name_of(messages[wrong->index].role),
        wrong->answer_is_due ? "assistant, function_call" : "user, tool", template_name));
  }
  if (!messages.empty() && is_question(messages.back().role)) return;
  const bool asks_nothing = messages.empty() || messages.back().role == Role::kSystem;
  throw UserError(
      fmt::format("{}the conversation {}; wanted is a message of the user (or a tool) at its end",
                  place, asks_nothing ? "has no question" : "ends with an answer"));
}

class NamedTemplate : public TurnEncoder {
 public:
  NamedTemplate(const Format& format, const Tokenizer& tokenizer,
                const std::optional<std::string>& default_system, const Thinking& thinking,
                const LocalTime& template_time)
      : format_(format),
        tokenizer_(tokenizer),
        default_system_(default_system.value_or(std::string(format.default_system))),
        thinking_(thinking),
        time_(template_time),
        no_thoughts_(no_thoughts(format)),
        marks_(marks_of_thoughts(format)) {
    for (std::string_view token : format.tokens) {
      if (!tokenizer.id_of(token)) {
        throw UserError(fmt::format(
            "template {}: the model's tokenizer has no token {}. Use the template that the model "
            "was made with, or leave template out to use the model's own chat_template.",
            format.name, token));
      }
    }
    if (tokenizer.bos_token()) bos_ = tokenizer.id_of(*tokenizer.bos_token());
    if (tokenizer.eos_token()) eos_ = tokenizer.id_of(*tokenizer.eos_token());
    const bool needs_eos =
        format.ends_once ||
        std::ranges::find(format.assistant, Slot::kEos, &Slot::kind) != format.assistant.end();
    if (needs_eos && !eos_) {
      throw UserError(fmt::format(
          "template {}: the model's tokenizer_config.json names no eos_token, which ends each turn",
          format.name));
    }
  }

  std::vector<Turn> turns(const Conversation& conversation) const override {
    const std::string place = place_of(conversation);
    auto message = conversation.messages.begin();
    const auto end = conversation.messages.end();
    std::string system = default_system_;
    if (message != end && message->role == Role::kSystem) {
      if (!message->content.empty()) system = message->content;
      ++message;
    }
    system += written_tools(conversation.tools, place);
    if (!conversation.documents.empty()) {
      throw RowError(fmt::format(
          "{}the row has documents, and template {} prints none. Leave template out so that the "
          "model's own chat template prints them, or leave the column of documents out.",
          place, format_.name));
    }
    std::vector<Turn> turns;
    while (message != end) {
      const Role asker = message->role;
      std::string question = message->content;
      for (++message; message != end && is_further_result(asker, *message); ++message) {
        require_frame_of_results(place);
        question += format_.between_results;
        question += message->content;
      }
      if (message == end) {
        throw RowError(
            fmt::format("{}template {} takes questions and answers in turn, and the last message, "
                        "the {}'s, has no answer.",
                        place, format_.name, name_of(asker)));
      }
      const Message& answer = *message++;
      Turn turn;
      if (turns.empty()) {
        append(format_.prefix, "", turn.source);
        if (!system.empty() && format_.system_in_question) {
          if (asker == Role::kUser) {
            question = with_content(format_.system[0].text, system) + question;
          } else if (!conversation.tools.empty()) {
            throw RowError(
                fmt::format("{}template {} describes the tools in the first question, but the "
                            "first message is a tool's. Begin with a message of the user.",
                            place, format_.name));
          }
        } else if (!system.empty()) {
          append(format_.system, system, turn.source);
        }
      }
      append(asker == Role::kObservation ? format_.observation : format_.user, question,
             turn.source);
      append_answer(answer, message == end, place, turn);
      turn.target_labels = turn.target;
      turn.is_trained = answer.is_trained;
      if (!answer.is_trained) {
        std::ranges::fill(turn.target_labels, static_cast<int32_t>(kIgnoreLabel));
      }
      turns.push_back(std::move(turn));
    }
    return turns;
  }

  std::vector<int32_t> question(const Conversation& conversation) const override {
    check_question(conversation, format_.name);
    Conversation answered = conversation;
    answered.messages.push_back({Role::kAssistant, ""});
    std::vector<int32_t> ids;
    const std::vector<Turn> all = turns(answered);
    for (const Turn& turn : all) {
      ids.insert(ids.end(), turn.source.begin(), turn.source.end());
      if (&turn != &all.back()) ids.insert(ids.end(), turn.target.begin(), turn.target.end());
    }
    return ids;
  }

  std::optional<int32_t> last_end() const override {
    return format_.ends_once ? eos_ : std::nullopt;
  }

  std::vector<int32_t> turn_ends() const override {
    std::vector<int32_t> ends;
    for (const std::string_view word : format_.stop_words) {
      if (const auto id = tokenizer_.id_of(word)) ends.push_back(*id);
    }
    if (format_.ends_once && eos_) return with_end(std::move(ends), *eos_);
    for (const Slot& slot : format_.assistant) {
      if (slot.kind == Slot::kEos && eos_) return with_end(std::move(ends), *eos_);
      const size_t content = slot.text.find(kContent);
      if (content == std::string_view::npos) continue;
      const auto after = tokenizer_.encode(slot.text.substr(content + kContent.size()));
      if (const auto end = leading_special(tokenizer_, after)) {
        return with_end(std::move(ends), *end);
      }
    }
    return ends;
  }

 private:
  static std::vector<int32_t> with_end(std::vector<int32_t> ends, int32_t end) {
    if (std::ranges::find(ends, end) == ends.end()) ends.push_back(end);
    return ends;
  }

  static std::string with_content(std::string_view frame, const std::string& content) {
    std::string text(frame);
    if (const size_t at = text.find(kContent); at != std::string::npos) {
      text.replace(at, kContent.size(), content);
    }
    return text;
  }

  static bool is_further_result(Role asker, const Message& message) {
    return asker == Role::kObservation && message.role == Role::kObservation;
  }

  void require_frame_of_results(const std::string& place) const {
    if (!format_.between_results.empty()) return;
    throw RowError(fmt::format(
        "{}results of several tools stand in a row, and template {} has no place for more than "
        "one. Join them, or leave template out so that the model's own chat template prints them.",
        place, format_.name));
  }

  /// Returns the tools' text, which follows the system text.
  std::string written_tools(const std::string& tools, const std::string& place) const {
    if (tools.empty()) return "";
    const ToolFormat& format = format_.tools;
    if (format.empty()) {
      throw RowError(fmt::format(
          "{}the row has tools, and template {} prints none. Leave template out so that the "
          "model's own chat template prints them, or leave the column of tools out.",
          place, format_.name));
    }
    return written_tool_list(format, tools, time_, place);
  }

  /// Returns the answer's text, with its separate thoughts before it.
  std::string with_thoughts(const Message& answer, const std::string& place) const {
    if (answer.thoughts.empty()) return answer.content;
    if (!format_.thinks) {
      throw RowError(fmt::format(
          "{}an answer has thoughts (reasoning_content), and template {} has no place for them. "
          "Leave template out so that the model's own chat template prints them, or remove them.",
          place, format_.name));
    }
    const std::string thoughts =
        fmt::format("{}{}{}", format_.thoughts_begin, answer.thoughts, format_.thoughts_close);
    if (answer.content.starts_with(thoughts)) return answer.content;
    if (!has_marks(answer.content)) return thoughts + answer.content;
    throw RowError(
        fmt::format("{}an answer has thoughts in its text ({}), and other ones beside it "
                    "(reasoning_content). Keep one of the two.",
                    place, fmt::join(marks_, " or ")));
  }

  bool has_marks(const std::string& content) const {
    return std::ranges::any_of(
        marks_, [&](const std::string& mark) { return content.find(mark) != std::string::npos; });
  }

  void append_answer(const Message& answer, bool is_last, const std::string& place,
                     Turn& turn) const {
    std::string content = with_thoughts(answer, place);
    if (format_.thinks) {
      const bool keeps_thoughts = is_last || !thinking_.last_answer_only;
      if (!thinking_.enabled || !keeps_thoughts) content = without_thoughts(format_, content);
      const bool has_thoughts = has_marks(content);
      // Empty thoughts belong to the question where the model is not to think.
      if ((is_last || thinking_.marks_all()) && !has_thoughts) {
        append({{Slot::kText, no_thoughts_}}, "", thinking_.enabled ? turn.target : turn.source);
      }
    }
    const bool calls = !answer.calls.empty();
    if (calls) {
      // The end of thoughts is already a line break.
      if (!content.empty() && !content.ends_with(format_.thoughts_close)) content += '\n';
      content += written_calls(format_.calls, answer.calls, place);
    }
    append(calls && !format_.function.empty() ? format_.function : format_.assistant, content,
           turn.target);
  }

  void append(const Frame& frame, const std::string& content, std::vector<int32_t>& ids) const {
    for (const Slot& slot : frame) {
      if (slot.kind != Slot::kText) {
        const std::optional<int32_t>& token = slot.kind == Slot::kBos ? bos_ : eos_;
        if (token) ids.push_back(*token);
        continue;
      }
      const std::vector<int32_t> encoded = tokenizer_.encode(with_content(slot.text, content));
      ids.insert(ids.end(), encoded.begin(), encoded.end());
    }
  }

  const Format& format_;
  Tokenizer tokenizer_;
  std::string default_system_;
  Thinking thinking_;
  LocalTime time_;
  std::string no_thoughts_;
  std::vector<std::string> marks_;
  std::optional<int32_t> bos_, eos_;
};

}  // namespace

std::optional<int32_t> leading_special(const Tokenizer& tokenizer,
                                       const std::vector<int32_t>& ids) {
  if (ids.empty() || !tokenizer.decode({ids[0]}, /*skip_special_tokens=*/true).empty()) {
    return std::nullopt;
  }
  return ids[0];
}

std::unique_ptr<TurnEncoder> make_named_template(const std::string& name,
                                                 const Tokenizer& tokenizer,
                                                 const std::optional<std::string>& default_system,
                                                 const Thinking& thinking,
                                                 const LocalTime& template_time) {
  return std::make_unique<NamedTemplate>(template_format(name), tokenizer, default_system, thinking,
                                         template_time);
}

Thinking thinking_of(const DataSettings& config, const Stage& stage) {
  const bool one_question = !stage.trains_all_answers || config.v1_rows || config.asks_rows;
  const bool strips = (one_question || config.mask_history) && !config.preserve_thinking;
  return {config.enable_thinking.value_or(true), strips, one_question && !strips};
}

std::unique_ptr<TurnEncoder> make_turn_encoder(const DataSettings& config, const Stage& stage,
                                               const Tokenizer& tokenizer,
                                               const LocalTime& template_time) {
  if (config.chat_template.empty()) {
    return make_model_template(tokenizer, config.default_system,
                               {config.enable_thinking, config.preserve_thinking}, template_time);
  }
  return make_named_template(config.chat_template, tokenizer, config.default_system,
                             thinking_of(config, stage), template_time);
}

std::string end_of_text(const std::string& template_name, const Tokenizer& tokenizer) {
  std::string token;
  if (!template_name.empty()) token = template_format(template_name).end_of_text;
  // LLaMA-Factory's default where the tokenizer has no eos_token.
  if (token.empty()) token = tokenizer.eos_token().value_or("<|endoftext|>");
  if (tokenizer.id_of(token)) return token;
  throw UserError(fmt::format(
      "the model's tokenizer has no token {} to end a text with: {}", token,
      template_name.empty()
          ? "name its eos_token in tokenizer_config.json"
          : fmt::format("leave template: {} out to use the tokenizer's eos_token", template_name)));
}

}  // namespace longspan
