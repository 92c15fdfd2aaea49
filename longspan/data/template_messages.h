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

/// The form of calls that a template expects. content_is_null: the content of an answer that has
/// only calls is null (otherwise empty). arguments_are_text: arguments are JSON text (otherwise an
/// object).
struct CallShape {
  bool content_is_null, arguments_are_text;
};
/// Returns all forms; the first is the form in transformers' documentation.
std::span<const CallShape> call_shapes();

/// Returns a message with role and content (with pictures: a list of parts), and with
/// reasoning_content, tool_calls, name and tool_call_id if `message` has these parts. Throws
/// RowError with `place`.
nlohmann::ordered_json template_message(const Message& message, const CallShape& shape,
                                        const std::string& place);

/// Returns, in order, the pictures and videos of a conversation for which templates print another
/// text (MessagePicture::printed) than MessagePicture::text.
std::vector<MessagePicture> printed_otherwise(const Conversation& conversation);

/// Replaces the printed text of each picture (MessagePicture::printed) by MessagePicture::text, in
/// order.
RenderedChat with_picture_texts(RenderedChat chat, const std::vector<MessagePicture>& pictures);

/// True if the text has a call's name, and each key and value of the call's arguments. False if the
/// text has the arguments as a Python dict, which a template prints if it expects JSON text and
/// gets an object.
bool is_printed_in(std::string_view text, const FunctionCall& call);

}  // namespace longspan
