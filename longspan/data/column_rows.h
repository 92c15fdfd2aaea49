// Reads the rows of parquet and Arrow files. No torch.
#pragma once

#include <string>

#include "longspan/data/row_file.h"

namespace longspan {

/// Passes the rows of a parquet or Arrow file to `taker`, in order, with their places
/// ("rows.parquet, row 3"). Returns false if `taker` stopped the reading. Throws UserError as
/// ColumnsReader does.
bool for_each_column_row(const std::string& path, bool is_parquet, const RowTaker& taker);

/// Returns the reason why a column cannot be used, with the remedy.
std::string refusal_of(const LeftOutColumn& column, const std::string& path);

}  // namespace longspan
