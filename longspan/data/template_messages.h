// Conversations as the messages of a chat template. No torch.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "longspan/data/conversation.h"
#include "longspan/text/chat_template.h"

namespace longspan {

/// The form of calls that a template expects: content of an answer with only calls is null or
/// empty, and arguments are JSON text or an object.
struct CallShape {
  bool content_is_null, arguments_are_text;
};
/// Returns all forms, the one of transformers' documentation first.
std::span<const CallShape> call_shapes();

/// Returns a message with role and content (with pictures: a list of parts), and with
/// reasoning_content, tool_calls, name and tool_call_id where it has them. Throws RowError with
/// `place`.
nlohmann::ordered_json template_message(const Message& message, const CallShape& shape,
                                        const std::string& place);

/// Returns the pictures and videos of a conversation whose text is not what templates print
/// (MessagePicture::printed), in order.
std::vector<MessagePicture> printed_otherwise(const Conversation& conversation);

/// Sets the texts of pictures in place of what templates print for them, one after the other.
RenderedChat with_picture_texts(RenderedChat chat, const std::vector<MessagePicture>& pictures);

/// Whether the text has a call's name, and each key and value of its arguments. False where the
/// text has the arguments as a Python dict: a template that expects JSON text prints an object in
/// this form.
bool is_printed_in(std::string_view text, const FunctionCall& call);

}  // namespace longspan
