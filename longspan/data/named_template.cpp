// Conversations by a template of LLaMA-Factory's.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "longspan/config/data_settings.h"
#include "longspan/config/user_error.h"
#include "longspan/data/bad_rows.h"
#include "longspan/data/function_calls.h"
#include "longspan/data/template_format.h"
#include "longspan/data/turns.h"
#include "longspan/stages/stage.h"

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

/// An answer without the thoughts before it.
std::string without_thoughts(const Format& format, std::string text) {
  const std::string_view open = format.thoughts_begin, close = format.thoughts_close;
  for (size_t begin = 0; (begin = text.find(open, begin)) != std::string::npos;) {
    const size_t end = text.find(close, begin + open.size());
    if (end == std::string::npos) break;
    text.erase(begin, end + close.size() - begin);
  }
  return text.substr(std::min(text.find_first_not_of('\n'), text.size()));
}

/// Messages that lead to an answer: a system message, if any, then questions and answers in turn, a
/// question last.
void check_question(const Conversation& conversation, std::string_view template_name) {
  const std::vector<Message>& messages = conversation.messages;
  const std::string place = conversation.source.empty() ? "" : conversation.source + ": ";
  const size_t first = !messages.empty() && messages[0].role == Role::kSystem ? 1 : 0;
  for (size_t i = first; i < messages.size(); ++i) {
    const bool asks = (i - first) % 2 == 0;
    if (asks ? is_question(messages[i].role) : is_answer(messages[i].role)) continue;
    throw UserError(fmt::format(
        "{}message {} is the {}'s, wanted is one of {}. Template {} takes a system message first, "
        "if any, then user (or tool) and assistant (or function_call) in turn. Join or remove "
        "messages, or leave the template out where the model's own takes such a conversation.",
        place, i + 1, name_of(messages[i].role), asks ? "user, tool" : "assistant, function_call",
        template_name));
  }
  if ((messages.size() - first) % 2 == 1) return;
  throw UserError(
      fmt::format("{}the conversation {}; wanted is a message of the user (or a tool) at its end",
                  place, messages.size() == first ? "has no question" : "ends with an answer"));
}

class NamedTemplate : public TurnEncoder {
 public:
  NamedTemplate(const Format& format, const Tokenizer& tokenizer,
                const std::optional<std::string>& default_system, const Thinking& thinking)
      : format_(format),
        tokenizer_(tokenizer),
        default_system_(default_system.value_or(std::string(format.default_system))),
        thinking_(thinking),
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
        std::ranges::find(format.assistant, Piece::kEos, &Piece::kind) != format.assistant.end();
    if (needs_eos && !eos_) {
      throw UserError(fmt::format(
          "template {}: the model's tokenizer_config.json names no eos_token, which ends each turn",
          format.name));
    }
  }

  std::vector<Turn> turns(const Conversation& conversation) const override {
    auto message = conversation.messages.begin();
    const auto end = conversation.messages.end();
    std::string system = default_system_;
    if (message != end && message->role == Role::kSystem) {
      if (!message->content.empty()) system = message->content;
      ++message;
    }
    if ((end - message) % 2 != 0) {
      throw RowError(
          fmt::format("{}template {} takes questions and answers in turn, and the last message, "
                      "the {}'s, has no answer.",
                      conversation.source.empty() ? "" : conversation.source + ": ", format_.name,
                      name_of(conversation.messages.back().role)));
    }
    std::vector<Turn> turns;
    for (; message != end; message += 2) {
      Turn turn;
      std::string question = message->content;
      if (turns.empty()) {
        append(format_.prefix, "", turn.source);
        if (!system.empty() && format_.system_in_question) {
          if (message->role == Role::kUser) {
            question = with_content(format_.system[0].text, system) + question;
          }
        } else if (!system.empty()) {
          append(format_.system, system, turn.source);
        }
      }
      append(message->role == Role::kObservation ? format_.observation : format_.user, question,
             turn.source);
      append_answer(message[1], message + 2 == end, conversation.source, turn);
      turn.target_labels = turn.target;
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

  std::optional<int32_t> turn_end() const override {
    if (format_.ends_once) return eos_;
    for (const Piece& piece : format_.assistant) {
      if (piece.kind == Piece::kEos) return eos_;
      const size_t content = piece.text.find(kContent);
      if (content == std::string_view::npos) continue;
      const auto after = tokenizer_.encode(piece.text.substr(content + kContent.size()));
      if (const auto special = leading_special(tokenizer_, after)) return special;
    }
    return std::nullopt;
  }

 private:
  static std::string with_content(std::string_view frame, const std::string& content) {
    std::string text(frame);
    if (const size_t at = text.find(kContent); at != std::string::npos) {
      text.replace(at, kContent.size(), content);
    }
    return text;
  }

  void append_answer(const Message& answer, bool is_last, const std::string& place,
                     Turn& turn) const {
    std::string content = answer.content;
    if (format_.thinks) {
      const bool is_trained = is_last || !thinking_.last_answer_only;
      if (!thinking_.enabled || !is_trained) content = without_thoughts(format_, content);
      const bool has_thoughts = std::ranges::any_of(
          marks_, [&](const std::string& mark) { return content.find(mark) != std::string::npos; });
      // An empty thought is given with the question where answers are not to think.
      if (is_trained && !has_thoughts) {
        append({{Piece::kText, no_thoughts_}}, "", thinking_.enabled ? turn.target : turn.source);
      }
    }
    const bool calls = answer.role == Role::kFunction;
    if (calls) content = written_calls(format_.calls, parse_function_calls(content, place), place);
    append(calls && !format_.function.empty() ? format_.function : format_.assistant, content,
           turn.target);
  }

  void append(const Frame& frame, const std::string& content, std::vector<int32_t>& ids) const {
    for (const Piece& piece : frame) {
      if (piece.kind != Piece::kText) {
        const std::optional<int32_t>& token = piece.kind == Piece::kBos ? bos_ : eos_;
        if (token) ids.push_back(*token);
        continue;
      }
      const std::vector<int32_t> encoded = tokenizer_.encode(with_content(piece.text, content));
      ids.insert(ids.end(), encoded.begin(), encoded.end());
    }
  }

  const Format& format_;
  Tokenizer tokenizer_;
  std::string default_system_;
  Thinking thinking_;
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
                                                 const Thinking& thinking) {
  return std::make_unique<NamedTemplate>(template_format(name), tokenizer, default_system,
                                         thinking);
}

Thinking thinking_of(const DataSettings& config, const Stage& stage) {
  return {config.enable_thinking, !stage.trains_all_answers || config.mask_history};
}

std::unique_ptr<TurnEncoder> make_turn_encoder(const DataSettings& config, const Stage& stage,
                                               const Tokenizer& tokenizer, const Moment& moment) {
  if (config.chat_template.empty()) {
    return make_model_template(tokenizer, config.default_system, config.enable_thinking, moment);
  }
  return make_named_template(config.chat_template, tokenizer, config.default_system,
                             thinking_of(config, stage));
}

std::string end_of_text(const std::string& template_name, const Tokenizer& tokenizer) {
  std::string token;
  if (!template_name.empty()) token = template_format(template_name).end_of_text;
  // Without an eos_token, LLaMA-Factory takes this one.
  if (token.empty()) token = tokenizer.eos_token().value_or("<|endoftext|>");
  if (tokenizer.id_of(token)) return token;
  throw UserError(fmt::format(
      "the model's tokenizer has no token {} to end a text with: {}", token,
      template_name.empty()
          ? "name its eos_token in tokenizer_config.json"
          : fmt::format("leave template: {} out to use the tokenizer's eos_token", template_name)));
}

}  // namespace longspan
