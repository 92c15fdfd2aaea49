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

/// How much of a call there is in a text.
enum class Printed {
  kNot,
  kParts,  // the name, and every key and value of the arguments
  kWhole,  // the name, and the arguments as JSON
};
Printed printed_in(std::string_view text, const FunctionCall& call);

}  // namespace longspan
