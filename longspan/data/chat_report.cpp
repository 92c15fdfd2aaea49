#include "longspan/data/chat_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <ranges>

#include "longspan/data/marked_chat.h"
#include "longspan/text/counted.h"

namespace longspan {

bool has_end(const Turn& turn, const std::set<int32_t>& ends, const Tokenizer& tokenizer) {
  for (size_t i = turn.target_labels.size(); i-- > 0;) {
    const int32_t label = turn.target_labels[i];
    if (label == kIgnoreLabel) continue;
    if (ends.contains(label)) return true;
    if (!stripped(tokenizer.decode({label})).empty()) return false;
  }
  return std::ranges::all_of(turn.target_labels,
                             [](int32_t label) { return label == kIgnoreLabel; });
}

std::set<int32_t> ends_of(const Tokenizer& tokenizer, const TurnEncoder& encoder) {
  std::set<int32_t> ends = tokenizer.end_tokens();
  const std::vector<int32_t> own = encoder.turn_ends();
  ends.insert(own.begin(), own.end());
  return ends;
}

std::optional<int32_t> end_of_answers(const Tokenizer& tokenizer, const TurnEncoder& encoder) {
  if (const auto last = encoder.last_end()) return last;
  const std::set<int32_t> ends = ends_of(tokenizer, encoder);
  Conversation conversation;
  conversation.messages = {{Role::kUser, "?"}, {Role::kAssistant, "?"}};
  conversation.source = "a conversation that tests the chat template";
  const std::vector<Turn> turns = encoder.turns(conversation);
  for (const int32_t label : turns.back().target_labels | std::views::reverse) {
    if (ends.contains(label)) return label;
  }
  const std::optional<std::string> eos = tokenizer.eos_token();
  return eos ? tokenizer.id_of(*eos) : std::nullopt;
}

void ChatReport::add(const std::vector<Turn>& turns, bool trains_all_answers,
                     const std::set<int32_t>& ends, const Tokenizer& tokenizer) {
  if (turns.empty()) return;
  const bool open_last = !ends.empty() && !has_end(turns.back(), ends, tokenizer);
  const bool open_earlier = !ends.empty() && trains_all_answers &&
                            std::any_of(turns.begin(), turns.end() - 1, [&](const Turn& turn) {
                              return !has_end(turn, ends, tokenizer);
                            });
  const bool lost = std::ranges::any_of(turns, &Turn::lost_thoughts);
  const std::scoped_lock lock(mutex_);
  ++num_chats_;
  num_lost_thoughts_ += lost;
  num_open_earlier_ += open_earlier;
  num_open_last_ += open_last;
  if (!turns.back().added_end) return;
  ++added_[tokenizer.decode({turns.back().target_labels.back()})];
}

std::vector<std::string> ChatReport::notes() const {
  const std::scoped_lock lock(mutex_);
  const auto of_chats = [this](int64_t number) {
    return fmt::format("{} of {}", number, counted(num_chats_, "chat"));
  };
  std::vector<std::string> notes;
  if (num_lost_thoughts_ > 0) {
    notes.push_back(fmt::format(
        "The model's chat template leaves out the thoughts of earlier answers in {}. Training has "
        "these answers as the template prints them.",
        of_chats(num_lost_thoughts_)));
  }
  for (const auto& [token, number] : added_) {
    notes.push_back(fmt::format(
        "The model's chat template prints no end token after the last answer. Training adds {} "
        "there in {}, so that generation stops.",
        token, of_chats(number)));
  }
  if (num_open_earlier_ > 0) {
    notes.push_back(fmt::format(
        "Earlier answers have no token that stops generation in {}. The ends of these answers are "
        "not trained.",
        of_chats(num_open_earlier_)));
  }
  if (num_open_last_ > 0) {
    notes.push_back(fmt::format(
        "warning: the last answer has no token that stops generation in {}. The trained model "
        "would not stop after its answers. Name a `template` with an end token after answers, or "
        "name the end token in eos_token_id of generation_config.json.",
        of_chats(num_open_last_)));
  }
  return notes;
}

}  // namespace longspan
