// Reads csv files of rows, with the values that pandas.read_csv gives them. No torch.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "longspan/data/row_file.h"

namespace longspan {

/// Passes the rows of a csv file to `taker`, in order. Returns false if `taker` stopped the
/// reading. The first line has the names of the columns ("Unnamed: 2" for an empty name). As by
/// datasets.load_dataset("csv"):
///   - An empty cell, one of pandas' texts for no value (NA, None, nan, ...) and a missing cell at
///     the end of a row are null. A note counts the texts.
///   - Each 10,000 rows of a column have one type: numbers if every cell that is not null is a
///     number, booleans if every such cell is true or false in any case, otherwise texts.
/// Rows with more cells than columns, with bytes that are not UTF-8 or with NUL are unusable.
/// Throws UserError: a column name that occurs twice, too many columns, a quote that is not closed.
bool for_each_csv_row(const std::string& path, const RowTaker& taker);

/// Returns the reason why a value of a csv file is null, a number or a boolean, as the end of an
/// error message: "; ...". Returns "" for texts and for rows of other files. `place`: the row's.
std::string csv_reason(const std::string& place, const nlohmann::ordered_json& value);

}  // namespace longspan
