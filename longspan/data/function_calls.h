// Calls of tools and lists of tools, as JSON. No torch.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

#include "longspan/data/conversation.h"
#include "longspan/data/unread_keys.h"

namespace longspan {

/// Parses the text of a message with LLaMA-Factory's role function_call: {"name": ..., "arguments":
/// ...} or a list of such objects. Throws RowError with `place`.
std::vector<FunctionCall> parse_function_calls(const std::string& content,
                                               const std::string& place);

/// Reads a message's tool_calls: a list of {"id", "type": "function", "function": {"name",
/// "arguments"}}, or a list of values of "function" alone. Arguments are a JSON object, or the text
/// of a JSON object. Counts unread keys. Throws RowError with `place`.
std::vector<FunctionCall> read_tool_calls(const nlohmann::ordered_json& calls,
                                          const std::string& place, UnreadKeys& unread);

/// Reads one call, {"name", "arguments"}. Counts unread keys. Throws RowError with `place`.
FunctionCall read_function(const nlohmann::ordered_json& function, const std::string& place,
                           UnreadKeys& unread);

/// Reads a row's tools: OpenAI's list, or LLaMA-Factory's list (functions only), or the JSON text
/// of either list. Returns Conversation::tools, each tool in OpenAI's shape; "" if the row has no
/// tools. Throws RowError with `place`.
std::string read_tools(const nlohmann::ordered_json& tools, const std::string& place);

/// Returns JSON in the format of Python's json.dumps(ensure_ascii=False).
std::string python_json(const nlohmann::ordered_json& value);
/// Returns names and values of the arguments: texts without quotes, other values as in `arguments`.
/// Throws RowError with `place` if the arguments are not an object.
std::vector<std::pair<std::string, std::string>> argument_texts(const FunctionCall& call,
                                                                const std::string& place);

/// Returns a JSON string with Python's escapes.
std::string python_json_string(const std::string& text);

}  // namespace longspan
