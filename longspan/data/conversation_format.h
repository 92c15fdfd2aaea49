// One row of a dataset file -> one conversation. No torch.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "longspan/data/conversation.h"
#include "longspan/data/dataset_info.h"
#include "longspan/data/unread_keys.h"

namespace longspan {

/// Reads the rows of one dataset, in order.
class RowReader {
 public:
  explicit RowReader(const DatasetEntry& entry) : entry_(entry) {}

  /// alpaca: history, then prompt + "\n" + query, then response. sharegpt, openai: messages by
  /// their tags. Pairs: chosen and rejected are texts (alpaca) or one message each. Throws
  /// UserError when no row so far has a column that the stage reads; RowError (place, what is
  /// there, what is wanted): wrong tags, values that are not text, roles out of order, no answer, a
  /// kto_tag that is no truth value.
  Conversation read(const nlohmann::ordered_json& row, const std::string& place);

  /// After the last row: throws UserError when a column that dataset_info.json names was in no row.
  void finish() const;

  /// The keys of the rows so far, and of their messages, that nothing reads.
  const UnreadKeys& unread() const { return unread_; }

 private:
  std::vector<std::string> demanded_in_first_row() const;
  void read_alpaca(const nlohmann::ordered_json& row, Conversation& conversation) const;
  void read_messages(const nlohmann::ordered_json& row, Conversation& conversation,
                     UnreadKeys& unread) const;
  void read_history(const nlohmann::ordered_json& row, Conversation& conversation) const;
  bool read_verdict(const nlohmann::ordered_json& row, const std::string& place) const;
  /// An answer of a pair.
  Message read_side(const nlohmann::ordered_json& row, const std::string& column,
                    const std::string& place, UnreadKeys& unread) const;
  /// One message; `where` names it.
  Message read_message(const nlohmann::ordered_json& message, const nlohmann::ordered_json& row,
                       const std::string& where, UnreadKeys& unread) const;
  std::vector<std::string> columns_read() const;
  void require_trained_answer(const Conversation& conversation) const;
  void require_turns(const Conversation& conversation) const;
  /// The row's text in a column; nullopt when the column is absent or null.
  std::optional<std::string> text(const nlohmann::ordered_json& row,
                                  const std::optional<std::string>& column,
                                  const std::string& place) const;
  [[noreturn]] void wrong_columns(const std::string& missing) const;
  [[noreturn]] void no_answer(const std::string& column, const std::string& place) const;

  const DatasetEntry& entry_;
  std::set<std::string> seen_;  // columns that some row had
  UnreadKeys unread_;
};

/// An entry for dataset_info.json that would read a row with these columns, as far as it can be
/// guessed from their names.
std::string suggested_entry(const DatasetEntry& entry, const nlohmann::ordered_json& row);

}  // namespace longspan
