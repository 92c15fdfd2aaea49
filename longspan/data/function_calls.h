// Function calls as text. No torch.
#pragma once

#include <string>
#include <vector>

#include "longspan/data/conversation.h"

namespace longspan {

/// Reads {"name": ..., "arguments": ...} or a list of them. Throws RowError with `place`.
std::vector<FunctionCall> parse_function_calls(const std::string& content,
                                               const std::string& place);

/// A JSON string with Python's escapes.
std::string python_json_string(const std::string& text);

}  // namespace longspan
