// Conversations as the messages of a chat template. No torch.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>

#include "longspan/data/conversation.h"

namespace longspan {

/// The form of calls that a template expects: content of an answer with only calls is null or
/// empty, and arguments are JSON text or an object.
struct CallShape {
  bool content_is_null, arguments_are_text;
};
/// Returns all forms, the one of transformers' documentation first.
std::span<const CallShape> call_shapes();

/// Returns a message with role and content, and with reasoning_content, tool_calls, name and
/// tool_call_id where it has them. Throws RowError with `place`.
nlohmann::ordered_json template_message(const Message& message, const CallShape& shape,
                                        const std::string& place);

/// Whether the text has a call's name, and each key and value of its arguments. False where the
/// text has them as a Python dict, which a template prints for an object where it expects JSON
/// text.
bool is_printed_in(std::string_view text, const FunctionCall& call);

}  // namespace longspan
