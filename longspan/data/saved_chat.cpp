// Turns a named template into the settings by which others chat with the saved model as it was
// trained.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "longspan/base/user_error.h"
#include "longspan/data/jinja_template.h"
#include "longspan/data/stage_encoders.h"
#include "longspan/data/template_format.h"
#include "longspan/data/turns.h"
#include "longspan/registers/stage.h"
#include "longspan/settings/data_settings.h"

namespace longspan {

namespace {

/// Chats with and without a system message, of one turn and of several.
std::vector<Conversation> samples_of_chats() {
  const Message system{Role::kSystem, "Be brief."}, question{Role::kUser, "What is it?"},
      answer{Role::kAssistant, "A word."}, thanks{Role::kUser, "Thanks"},
      last{Role::kAssistant, "Done."};
  const std::vector<std::vector<Message>> chats = {{question, answer},
                                                   {system, question, answer},
                                                   {question, answer, thanks, last},
                                                   {system, question, answer, thanks, last}};
  std::vector<Conversation> conversations(chats.size());
  for (size_t i = 0; i < chats.size(); ++i) conversations[i].messages = chats[i];
  return conversations;
}

/// Returns the tokens before the last answer.
std::vector<int32_t> prompt_ids(const TurnEncoder& encoder, const Conversation& chat) {
  return question_and_answer(encoder.turns(chat)).source;
}

/// Whether a chat template renders the same prompts as an encoder.
bool renders_prompts_of(const std::string& chat_template, const Tokenizer& tokenizer,
                        const std::optional<std::string>& eos, const TurnEncoder& encoder,
                        const LocalTime& template_time) {
  try {
    return std::ranges::all_of(samples_of_chats(), [&](const Conversation& chat) {
      Conversation asked = chat;
      asked.messages.pop_back();
      const std::string text = rendered_prompt(chat_template, tokenizer, eos, asked, template_time);
      return tokenizer.encode(text) == prompt_ids(encoder, chat);
    });
  } catch (const UserError&) {
    return false;  // the template refuses one of the chats
  }
}

std::optional<SavedChat::Token> token_of(const Tokenizer& tokenizer,
                                         const std::optional<std::string>& text) {
  if (!text || !tokenizer.id_of(*text)) return std::nullopt;
  return SavedChat::Token{*text, *tokenizer.id_of(*text)};
}

/// Returns the ends of answers by the model's own template, unless generation stops at all of them.
std::optional<SavedChat> ends_of_own_template(const DataSettings& config, const Stage& stage,
                                              const Tokenizer& tokenizer,
                                              const LocalTime& template_time) {
  if (!tokenizer.chat_template() || parts_of(stage.rows).text) return std::nullopt;
  SavedChat chat;
  const auto encoder = make_turn_encoder(config, stage, tokenizer, template_time);
  chat.stop_ids = encoder->turn_ends();
  if (const auto end = encoder->added_end()) chat.stop_ids.push_back(*end);
  const bool all_known = std::ranges::all_of(
      chat.stop_ids, [&](int32_t id) { return tokenizer.end_tokens_of_generate().contains(id); });
  return all_known ? std::nullopt : std::optional(chat);
}

}  // namespace

SavedChat chat_that_differs(const Tokenizer& from, const Tokenizer& to) {
  SavedChat chat;
  if (to.chat_template() != from.chat_template()) chat.chat_template = to.chat_template();
  if (to.eos_token() != from.eos_token()) chat.eos = token_of(from, to.eos_token());
  if (to.pad_token() != from.pad_token()) chat.pad = token_of(from, to.pad_token());
  return chat;
}

std::optional<SavedChat> saved_chat(const DataSettings& config, const Stage& stage,
                                    const Tokenizer& tokenizer, const LocalTime& template_time) {
  if (config.chat_template.empty())
    return ends_of_own_template(config, stage, tokenizer, template_time);
  const Format& format = template_format(config.chat_template);
  SavedChat chat;
  std::optional<std::string> eos = tokenizer.eos_token();
  if (format.replaces_eos) eos = std::string(format.stop_words.front());
  if (!eos && tokenizer.id_of("<|endoftext|>")) eos = "<|endoftext|>";
  chat.eos = token_of(tokenizer, eos);
  chat.pad = token_of(tokenizer, tokenizer.pad_token() ? tokenizer.pad_token() : eos);
  for (const std::string_view word : format.stop_words) {
    if (const auto id = tokenizer.id_of(word); id && (!chat.eos || *id != chat.eos->id)) {
      chat.stop_ids.push_back(*id);
    }
  }

  const Thinking trained = thinking_of(config, stage);
  const auto encoder = make_named_template(config.chat_template, tokenizer, config.default_system,
                                           trained, template_time);
  if (const auto own = tokenizer.chat_template()) {
    // The model's own template may support more (tools, ...). It is kept where it renders these
    // prompts, or the prompts of chats, which leave out thoughts of earlier answers.
    const auto chatting =
        make_named_template(config.chat_template, tokenizer, config.default_system,
                            {trained.enabled, true}, template_time);
    const std::string candidate = format.thinks && !trained.enabled
                                      ? "{%- if enable_thinking is not defined -%}{%- set "
                                        "enable_thinking = false -%}{%- endif "
                                        "-%}" +
                                            *own
                                      : *own;
    const auto fits = [&](const TurnEncoder& prompts) {
      return renders_prompts_of(candidate, tokenizer, eos, prompts, template_time);
    };
    if (fits(*encoder) || (format.thinks && fits(*chatting))) {
      // AutoTokenizer does not read a processor's template.
      if (candidate != *own || tokenizer.has_processor_template()) chat.chat_template = candidate;
      return chat;
    }
  }
  chat.chat_template =
      jinja_template(format, tokenizer.bos_token().value_or(""), eos.value_or(""),
                     config.default_system.value_or(std::string(format.default_system)), trained);
  return chat;
}

}  // namespace longspan
