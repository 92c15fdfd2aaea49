// Calls of tools, and the tools that can be called, as JSON. No torch.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

#include "longspan/data/conversation.h"
#include "longspan/data/unread_keys.h"

namespace longspan {

/// Reads calls as a message of LLaMA-Factory's role function_call holds them: {"name": ...,
/// "arguments": ...} or a list of them, as text. Throws RowError with `place`.
std::vector<FunctionCall> parse_function_calls(const std::string& content,
                                               const std::string& place);

/// Reads a message's tool_calls, a list of {"id", "type": "function", "function": {"name",
/// "arguments"}}, or of what "function" holds. The arguments are a JSON object, or one as text.
/// Throws RowError with `place`; counts keys of calls that are not read.
std::vector<FunctionCall> read_tool_calls(const nlohmann::ordered_json& calls,
                                          const std::string& place, UnreadKeys& unread);

/// Reads one call, {"name", "arguments"}; errors and counts as above.
FunctionCall read_function(const nlohmann::ordered_json& function, const std::string& place,
                           UnreadKeys& unread);

/// Reads a row's tools: OpenAI's list, or LLaMA-Factory's (the functions alone), or either as text.
/// Returns the list as Conversation::tools has it, each tool in OpenAI's shape; "" where there are
/// none. Throws RowError with `place`.
std::string read_tools(const nlohmann::ordered_json& tools, const std::string& place);

/// JSON as Python's json.dumps(ensure_ascii=False) writes it.
std::string python_json(const nlohmann::ordered_json& value);
/// The arguments one by one, by name: texts as they are, other values as in `arguments`. Throws
/// RowError with `place` where the arguments are no object.
std::vector<std::pair<std::string, std::string>> argument_texts(const FunctionCall& call,
                                                                const std::string& place);

/// A JSON string with Python's escapes.
std::string python_json_string(const std::string& text);

}  // namespace longspan
