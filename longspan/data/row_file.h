// Reads files of rows: JSON in its usual layouts, csv, plain text, parquet, Arrow. No torch.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "longspan/text/columns_reader.h"

namespace longspan {

/// Receives the rows of a file. Reading stops when `take` or `refuse` returns false.
struct RowTaker {
  /// Receives a row and its place ("rows.json, row 3", "rows.jsonl, line 17").
  std::function<bool(const nlohmann::ordered_json&, const std::string&)> take;
  /// Receives the place of an unusable row (broken JSON, not an object, not UTF-8), with the
  /// reason.
  std::function<bool(const std::string&)> refuse;
  /// Receives a sentence, after the rows, about values whose meaning differs from their text
  /// (csv_rows.h, column_rows.h).
  std::function<void(const std::string&)> note;
  /// Receives, before the rows, each column or field that is not read, and the path of its file. A
  /// note after the rows names all of them. May be empty.
  std::function<void(const LeftOutColumn&, const std::string&)> leave_out = {};
  /// Receives, instead of `take` and `refuse`, a line of a file with an object in each line, and
  /// its number: take_line() reads it later. May be empty.
  std::function<bool(std::string&, int64_t)> take_whole_line = {};
  /// Lists and multi-line objects of files with more bytes, decompressed, are refused.
  int64_t most_whole_bytes = INT64_MAX;
};

/// Passes on a line of a file with an object in each line.
bool take_line(std::string_view text, const std::string& path, int64_t line, const RowTaker& taker);

/// Passes the rows of a file to `taker`, in order, with columns in the file's order. Returns false
/// if `taker` stopped the reading. The file has one of these layouts:
///   [{...}, {...}]             a list
///   {...}                      an object in each line, read line by line; or multi-line objects
///   {"data": [{...}, ...]}     a list in a single object, if `unwraps_data`
///   text (.txt)                each line, also an empty one, is a row {"text": the line}
///   csv (.csv)                 see for_each_csv_row()
///   parquet, Arrow             see for_each_column_row()
/// All but the last may be compressed (.gz, .zst). In memory are one row, or, of a list and of
/// multi-line objects, the whole file; of a compressed file at most kMaxLineBytes.
/// Throws UserError: a list that is broken JSON (with file and line), a csv file whose columns or
/// quotes are broken, UTF-16.
bool for_each_row(const std::string& path, bool unwraps_data, const RowTaker& taker);

/// Returns the first row that is an object, without reading the whole file where that is possible;
/// nullopt: there is none. Throws as for_each_row().
std::optional<nlohmann::ordered_json> first_row(const std::string& path);

/// Throws UserError if a file begins like UTF-16 or UTF-32. Accepts a file that cannot be read.
void refuse_utf16(const std::string& path);

}  // namespace longspan
