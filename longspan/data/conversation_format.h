// Turns rows of a dataset file into conversations. No torch.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "longspan/data/conversation.h"
#include "longspan/data/dataset_info.h"
#include "longspan/data/unread_keys.h"
#include "longspan/text/columns_reader.h"

namespace longspan {

/// Reads the rows of one dataset, in order.
class RowReader {
 public:
  explicit RowReader(const DatasetEntry& entry) : entry_(entry) {}

  /// Reads a row. alpaca: history, then prompt + "\n" + query, then response. sharegpt, openai:
  /// messages by their tags. Pairs: chosen and rejected are two texts (alpaca) or two messages.
  /// Throws UserError if no row so far has a column that the stage needs. Throws RowError (with
  /// place, found and wanted values) for wrong tags, values that are not text, roles out of order,
  /// a missing answer, or a kto_tag that is not a boolean.
  Conversation read(const nlohmann::ordered_json& row, const std::string& place);

  /// Throws UserError if the data set's entry names a column that is not read (column_rows.h).
  void require_read(const LeftOutColumn& column, const std::string& path) const;

  /// Must be called after the last row. Throws UserError if no row had a column that
  /// dataset_info.json names.
  void finish() const;

  /// Returns the keys of the rows and messages so far that no code reads.
  const UnreadKeys& unread() const { return unread_; }

 private:
  std::vector<std::string> demanded_in_first_row() const;
  void read_alpaca(const nlohmann::ordered_json& row, Conversation& conversation) const;
  void read_messages(const nlohmann::ordered_json& row, Conversation& conversation,
                     UnreadKeys& unread) const;
  void read_history(const nlohmann::ordered_json& row, Conversation& conversation) const;
  bool read_desirable(const nlohmann::ordered_json& row, const std::string& place) const;
  /// Reads one answer of a pair.
  Message read_side(const nlohmann::ordered_json& row, const std::string& column,
                    const std::string& place, UnreadKeys& unread) const;
  /// Reads one message. `where`: the name of the message in errors.
  Message read_message(const nlohmann::ordered_json& message, const nlohmann::ordered_json& row,
                       const std::string& where, UnreadKeys& unread) const;
  std::vector<std::string> columns_read() const;
  void require_trained_answer(const Conversation& conversation) const;
  void require_turns(const Conversation& conversation) const;
  /// Returns the row's text in a column; nullopt if the column is missing or null.
  std::optional<std::string> text(const nlohmann::ordered_json& row,
                                  const std::optional<std::string>& column,
                                  const std::string& place) const;
  [[noreturn]] void wrong_columns(const std::string& missing) const;
  [[noreturn]] void no_answer(const std::string& column, const std::string& place) const;

  const DatasetEntry& entry_;
  std::set<std::string> seen_;  // columns of any row so far
  UnreadKeys unread_;
};

/// Whether a file's one object may hold the rows in its "data": unless the rows have such a column.
bool unwraps_data(const DatasetEntry& entry);

/// Suggests an entry of dataset_info.json for rows with the columns of `row`, guessed from the
/// columns' names.
std::string suggested_entry(const DatasetEntry& entry, const nlohmann::ordered_json& row);

}  // namespace longspan
