// Reads files of prompts. No torch.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "longspan/data/conversation.h"
#include "longspan/data/unread_keys.h"

namespace longspan {

struct PromptRow {
  Conversation conversation;  // ends with a question
  std::string row;            // as in the file, a JSON object
};

/// Reads a file of rows (row_file.h; txt: one prompt a line, without empty lines), at most `most`
/// rows. A row is one of
///   {"messages" or "conversations": [{"role", "content"} or {"from", "value"}, ...]}
///   {"instruction": ..., "input": ..., "system": ..., "history": [[question, answer], ...]}
///   {"prompt" or "text": ...}, a text or messages as above
/// A row may have `tools` (see read_tools), files of pictures (see place_prompt_media; paths begin
/// at the file's folder) and other columns, which answered_row() keeps. Messages
/// may have more keys (see read_message_parts); unread keys are counted in `unread`. `notes` gets
/// the sentences of RowTaker::note. An answer at the end of the messages is dropped, since the
/// model gives its own answer. Throws UserError (with file and line): unreadable file, no known
/// column, no question, no rows.
std::vector<PromptRow> read_prompt_file(const std::string& path, int64_t most = INT64_MAX,
                                        UnreadKeys* unread = nullptr,
                                        std::vector<std::string>* notes = nullptr);

/// Returns one line of JSON without a line end: the row, with the answer in `predict`
/// (LLaMA-Factory's name) and the reason of its end in `finish_reason`.
std::string answered_row(const PromptRow& row, const std::string& answer,
                         const std::string& finish_reason);

}  // namespace longspan
