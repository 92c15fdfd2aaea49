#include "longspan/rollouts/rollout_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>

#include "longspan/data/bad_rows.h"
#include "longspan/data/function_calls.h"
#include "longspan/data/message_parts.h"
#include "longspan/data/turns.h"
#include "longspan/text/shown.h"

namespace longspan {
namespace {

using Json = nlohmann::ordered_json;

/// Reads the messages of one row.
class TextRow {
 public:
  TextRow(const Json& row, const std::string& place) : row_(row), place_(place) {}

  Conversation conversation() const {
    Conversation conversation;
    conversation.source = place_;
    UnreadKeys unread;
    add_prompt(conversation.messages, unread);
    add_completion(conversation.messages, unread);
    if (!unread.text().empty()) fail(unread.text());
    if (const auto wrong = first_out_of_turn(conversation.messages)) {
      fail(
          fmt::format("message {} is the {}'s, and {} is due; questions and answers take turns, "
                      "after at most one system message",
                      wrong->index + 1, name_of(conversation.messages[wrong->index].role),
                      wrong->answer_is_due ? "an answer" : "a question"));
    }
    if (has_pictures(conversation)) {
      fail("the messages have pictures, which rollouts do not take");
    }
    if (const Json* tools = value_of("tools")) {
      conversation.tools = read_tools(*tools, place_ + ": tools");
    }
    return conversation;
  }

 private:
  [[noreturn]] void fail(const std::string& problem) const {
    throw RowError(fmt::format("{}: {}", place_, problem));
  }

  const Json* value_of(const char* key) const {
    const auto value = row_.find(key);
    return value == row_.end() || value->is_null() ? nullptr : &*value;
  }

  Message message(const Json& message, const std::string& where, UnreadKeys& unread) const {
    static const std::map<std::string, Role> kRoles = {
        {"system", Role::kSystem},    {"developer", Role::kSystem},
        {"user", Role::kUser},        {"assistant", Role::kAssistant},
        {"tool", Role::kObservation}, {"function", Role::kObservation}};
    const auto role = message.is_object() ? message.find("role") : message.end();
    if (!message.is_object() || role == message.end() || !role->is_string()) {
      fail(fmt::format("{} must be an object {{\"role\": ..., \"content\": ...}}", where));
    }
    const auto known = kRoles.find(role->get<std::string>());
    if (known == kRoles.end()) {
      fail(
          fmt::format("{}: the role is \"{}\"; known are system, developer, user, assistant, tool "
                      "and function",
                      where, shortened(role->get<std::string>(), 40)));
    }
    if (!message.contains("content") && !calls_tools(message)) {
      fail(fmt::format("{} has no content", where));
    }
    return read_message_parts(message, {"role", "content"}, {known->second},
                              fmt::format("{}: {}", place_, where), unread);
  }

  void add_prompt(std::vector<Message>& messages, UnreadKeys& unread) const {
    const Json *prompt = value_of("prompt"), *given = value_of("messages");
    if ((prompt == nullptr) == (given == nullptr)) {
      fail("completion belongs to one of prompt and messages; give one of the two");
    }
    const char* const name = prompt != nullptr ? "prompt" : "messages";
    if (given == nullptr) given = prompt;
    if (prompt != nullptr && prompt->is_string()) {
      messages.push_back({Role::kUser, prompt->get<std::string>()});
    } else if (given->is_array()) {
      for (size_t i = 0; i < given->size(); ++i) {
        messages.push_back(
            message((*given)[i], fmt::format("message {} of {}", i + 1, name), unread));
      }
    } else {
      fail(fmt::format("{} must be {}a list of messages", name,
                       prompt != nullptr ? "a text or " : ""));
    }
    if (messages.empty() || !is_question(messages.back().role)) {
      fail(fmt::format("{} must end with a question, which completion answers", name));
    }
  }

  void add_completion(std::vector<Message>& messages, UnreadKeys& unread) const {
    const Json& completion = *value_of("completion");
    if (completion.is_string()) {
      messages.push_back({Role::kAssistant, completion.get<std::string>()});
    } else if (completion.is_array() && completion.size() == 1) {
      messages.push_back(message(completion[0], "the message of completion", unread));
    } else {
      fail(
          "completion must be a text or a list of one message; give several turns as token_ids and "
          "mask");
    }
    if (!is_answer(messages.back().role)) fail("the message of completion must be an assistant's");
    if (is_empty(messages.back())) fail("completion is empty, and nothing can be trained on it");
  }

  const Json& row_;
  const std::string& place_;
};

/// Drops the last token that ends an answer, with the white space after it.
void drop_end(Turn& turn, const std::set<int32_t>& ends, const Tokenizer& tokenizer) {
  for (size_t i = turn.target.size(); i-- > 0;) {
    if (ends.contains(turn.target[i])) {
      turn.target.resize(i);
      turn.target_labels.resize(i);
      return;
    }
    const std::string text = tokenizer.decode({turn.target[i]});
    if (text.find_first_not_of(" \t\r\n") != std::string::npos) return;
  }
}

void append_tokens(Rollout& rollout, const std::vector<int32_t>& ids,
                   const std::vector<int32_t>& labels) {
  for (size_t i = 0; i < ids.size(); ++i) {
    rollout.token_ids.push_back(ids[i]);
    rollout.mask.push_back(i < labels.size() && labels[i] != kIgnoreLabel);
  }
}

}  // namespace

void encode_text_rollout(const Json& row, const RolloutRules& rules, Rollout& rollout) {
  if (rules.turns == nullptr || rules.tokenizer == nullptr) {
    throw RowError(
        fmt::format("{}: the rollout has texts, and only token ids are read here; give "
                    "token_ids and mask",
                    rollout.source));
  }
  std::vector<Turn> turns = rules.turns->turns(TextRow(row, rollout.source).conversation());
  if (turns.empty() || turns.back().lost_thoughts) {
    throw RowError(
        fmt::format("{}: the chat template does not print the whole completion; give "
                    "token_ids and mask",
                    rollout.source));
  }
  if (rollout.is_truncated) {
    drop_end(turns.back(), ends_of(*rules.tokenizer, *rules.turns), *rules.tokenizer);
  }
  for (const Turn& turn : turns) {
    append_tokens(rollout, turn.source, {});
    const bool is_last = &turn == &turns.back();
    append_tokens(rollout, turn.target, is_last ? turn.target_labels : std::vector<int32_t>());
  }
  if (const auto end = rules.turns->last_end(); end && !rollout.is_truncated) {
    rollout.token_ids.push_back(*end);
    rollout.mask.push_back(true);
  }
}

}  // namespace longspan
