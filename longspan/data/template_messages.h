// A conversation as the messages that a chat template reads. No torch.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>

#include "longspan/data/conversation.h"

namespace longspan {

/// Templates want the content of an answer that only calls either empty or none, and arguments
/// either as an object or as JSON text.
struct CallShape {
  bool content_is_null, arguments_are_text;
};
/// All of them, the shape that transformers' documentation asks for first.
std::span<const CallShape> call_shapes();

/// A message with role, content, and as far as it has them reasoning_content, tool_calls, name and
/// tool_call_id. `place` is for the error.
nlohmann::ordered_json template_message(const Message& message, const CallShape& shape,
                                        const std::string& place);

/// Are the name of a call, and every key and value of its arguments in a text? Not as Python writes
/// a dict: so a template prints an object that wants JSON text.
bool is_printed_in(std::string_view text, const FunctionCall& call);

}  // namespace longspan
