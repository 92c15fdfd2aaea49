// Files of prompts. No torch.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "longspan/data/conversation.h"
#include "longspan/data/unread_keys.h"

namespace longspan {

struct PromptRow {
  Conversation conversation;  // ends with a question
  std::string row;            // as it was in the file, a JSON object
};

/// Reads json, jsonl or txt (a prompt a line, empty ones are left out); at most `most` rows. A row
/// is one of
///   {"messages" or "conversations": [{"role", "content"} or {"from", "value"}, ...]}
///   {"instruction": ..., "input": ..., "system": ..., "history": [[question, answer], ...]}
///   {"prompt" or "text": ...}, a text or messages as above
/// with `tools` beside (see read_tools) and other columns, which answered_row hands on. A message
/// may have more keys than these (see read_message_parts); keys of messages that nothing reads are
/// counted in `unread`. An answer at the end of the messages is left out: it is what the
/// model is to say. Throws UserError (file and line): unreadable, no such column, no question, no
/// rows.
std::vector<PromptRow> read_prompt_file(const std::string& path, int64_t most = INT64_MAX,
                                        UnreadKeys* unread = nullptr);

/// The row with the answer in `predict` (LLaMA-Factory's name) and how it ended in `finish_reason`,
/// one line of JSON without its end.
std::string answered_row(const PromptRow& row, const std::string& answer,
                         const std::string& finish_reason);

}  // namespace longspan
