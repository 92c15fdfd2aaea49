// Data sets without an entry in dataset_info.json: names and types of columns say how rows are
// read. No torch.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "longspan/data/dataset_info.h"

namespace longspan {

/// The entry that known columns stand for.
struct KnownColumns {
  std::string entry;  // JSON, without file_name
  Joined joined = Joined::kNothing;
  std::string text;  // names the columns, for the user: "chosen, rejected"
};

/// Returns the entry for rows with the columns of `row`; nullopt: the columns do not say enough for
/// rows of this kind.
std::optional<KnownColumns> known_columns(const nlohmann::ordered_json& row, RowKind kind);

/// Returns the row with the columns that the entry of known_columns() names. Throws RowError, with
/// the place, where columns are no lists of messages.
nlohmann::ordered_json joined_row(const nlohmann::ordered_json& row, Joined joined,
                                  const std::string& place);

}  // namespace longspan
