#include "longspan/data/joined_messages.h"

#include <fmt/format.h>

#include "longspan/base/user_error.h"
#include "longspan/data/marked_chat.h"
#include "longspan/data/turns.h"
#include "longspan/registers/stage.h"
#include "longspan/settings/data_settings.h"
#include "longspan/text/counted.h"

namespace longspan {

namespace {

constexpr int64_t kMostChats = 100;

/// Returns the conversation before the last answer.
Conversation question_of(const Conversation& row) {
  Conversation asked = row;
  asked.messages.pop_back();
  for (Message& message : asked.messages) {
    message.content = ends_of(message.content);
    message.thoughts = ends_of(message.thoughts);
    message.pictures.clear();  // tags are as good as any text here
  }
  return asked;
}

}  // namespace

std::string hint_at_joined_messages(const DataSettings& config, const Stage& stage,
                                    const SavedChat& chat, const Tokenizer& tokenizer,
                                    const std::vector<Conversation>& rows,
                                    const LocalTime& template_time) {
  if (parts_of(stage.rows).text || !chat.chat_template) return "";
  const auto own = tokenizer.chat_template();
  if (own && chat.chat_template->ends_with(*own)) return "";
  const auto encoder = make_named_template(config.chat_template, tokenizer, config.default_system,
                                           thinking_of(config, stage), template_time);
  const auto eos = chat.eos ? std::optional(chat.eos->text) : std::nullopt;
  int64_t num_chats = 0, num_joined = 0;
  for (const Conversation& row : rows) {
    if (num_chats == kMostChats) break;
    if (row.messages.size() < 2) continue;
    const Conversation asked = question_of(row);
    try {
      const std::string text =
          rendered_prompt(*chat.chat_template, tokenizer, eos, asked, template_time);
      num_joined += tokenizer.encode(text) != encoder->question(asked);
      ++num_chats;
    } catch (const UserError&) {
      // A chat that either of the two refuses (roles out of order, written calls) does not count.
    }
  }
  if (num_joined == 0) return "";
  return fmt::format(
      "template: {} has no special token at the end of a message. In {} of the first {}, a token "
      "joins the end of a message with the beginning of the next if the rendered chat is tokenized"
      " as one text, as in transformers and other programs. Training tokenizes each message "
      "separately, as LLaMA-Factory does, and so does `longspan chat` with template={}. Templates "
      "with a special token at the end of each message, such as chatml, hardly differ.",
      config.chat_template, num_joined, counted(num_chats, "chat"), config.chat_template);
}

}  // namespace longspan
