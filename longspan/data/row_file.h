// Files of rows: JSON in its usual layouts, or plain text. No torch.
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace longspan {

/// Takes the rows of a file. Reading stops when one of the two returns false.
struct RowTaker {
  /// A row and its place ("rows.json, row 3", "rows.jsonl, line 17").
  std::function<bool(const nlohmann::ordered_json&, const std::string&)> take;
  /// Takes the place of a row that is broken JSON, no object or not UTF-8, and the reason.
  std::function<bool(const std::string&)> refuse;
};

/// Hands over the rows of a file, in order; a row's columns are in the file's order. Returns false
/// where the reader stopped it. The file holds
///   [{...}, {...}]             a list
///   {...}                      an object a line, read line by line; or objects over several lines
///   {"data": [{...}, ...]}     the list in that one object, where `unwraps_data`
///   text (.txt)                each line, also an empty one, is a row {"text": the line}
/// Throws UserError: a list that is broken JSON (file and line), UTF-16.
bool for_each_row(const std::string& path, bool unwraps_data, const RowTaker& taker);

/// Throws UserError when a file begins as UTF-16 or UTF-32 does; one that cannot be read passes.
void refuse_utf16(const std::string& path);

}  // namespace longspan
