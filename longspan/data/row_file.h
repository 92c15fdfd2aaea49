// Files of rows: a JSON array, one JSON object a line, or plain text. No torch.
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace longspan {

/// Hands over each row and its place ("rows.json, row 3", "rows.jsonl, line 17") until `take` says
/// false; returns whether it never did. Lines are read one by one, an array as a whole. Each
/// line of a .txt file, also an empty one, is a row {"text": the line}. Throws UserError: broken
/// JSON (file and line), a row that is not an object.
bool for_each_row(const std::string& path,
                  const std::function<bool(const nlohmann::json&, const std::string&)>& take);

}  // namespace longspan
