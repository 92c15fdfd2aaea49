// One row of a dataset file -> one conversation. No torch.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "longspan/data/conversation.h"
#include "longspan/data/dataset_info.h"

namespace longspan {

/// Reads the rows of one dataset, in order.
class RowReader {
 public:
  explicit RowReader(const DatasetEntry& entry) : entry_(entry) {}

  /// alpaca: history, then prompt + "\n" + query, then response. sharegpt: messages by their tags.
  /// Pairs: chosen and rejected are texts (alpaca) or one message each (sharegpt). Throws UserError
  /// when no row so far has a column that the stage reads; RowError (place, what is there, what is
  /// wanted): wrong tags, values that are not text, roles out of order, no answer, a kto_tag that
  /// is no truth value.
  Conversation read(const nlohmann::json& row, const std::string& place);

  /// After the last row: throws UserError when a column that dataset_info.json names was in no row.
  void finish() const;

 private:
  std::vector<std::string> demanded_in_first_row() const;
  void read_alpaca(const nlohmann::json& row, Conversation& conversation) const;
  void read_sharegpt(const nlohmann::json& row, Conversation& conversation) const;
  void read_history(const nlohmann::json& row, Conversation& conversation) const;
  bool read_verdict(const nlohmann::json& row, const std::string& place) const;
  /// An answer of a pair.
  Message read_side(const nlohmann::json& row, const std::string& column,
                    const std::string& place) const;
  /// One message of a sharegpt row; `where` names it.
  Message read_message(const nlohmann::json& message, const nlohmann::json& row,
                       const std::string& where) const;
  void require_turns(const Conversation& conversation) const;
  /// The row's text in a column; nullopt when the column is absent or null.
  std::optional<std::string> text(const nlohmann::json& row,
                                  const std::optional<std::string>& column,
                                  const std::string& place) const;
  [[noreturn]] void wrong_columns(const std::string& missing) const;
  [[noreturn]] void no_answer(const std::string& column, const std::string& place) const;

  const DatasetEntry& entry_;
  std::set<std::string> seen_;  // columns that some row had
};

/// An entry for dataset_info.json that would read a row with these columns, as far as it can be
/// guessed from their names.
std::string suggested_entry(const DatasetEntry& entry, const nlohmann::json& row);

}  // namespace longspan
