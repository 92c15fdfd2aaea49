// Function calls as text. No torch.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace longspan {

struct FunctionCall {
  std::string name;
  std::string arguments;  // JSON, written as Python's json.dumps(ensure_ascii=False) writes it
};

/// Reads {"name": ..., "arguments": ...} or a list of them. Throws RowError with `place`.
std::vector<FunctionCall> parse_function_calls(const std::string& content,
                                               const std::string& place);

/// The arguments one by one, by name: texts as they are, other values as in `arguments`. Throws
/// RowError with `place` where the arguments are no object.
std::vector<std::pair<std::string, std::string>> argument_texts(const FunctionCall& call,
                                                                const std::string& place);

/// A JSON string with Python's escapes.
std::string python_json_string(const std::string& text);

}  // namespace longspan
