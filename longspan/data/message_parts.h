// Reads the parts of a chat message, by the keys of sharegpt, OpenAI and axolotl. No torch.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "longspan/data/conversation.h"
#include "longspan/data/unread_keys.h"

namespace longspan {

/// The role of a message, and the kind of the message's text.
struct Speaker {
  Role role;
  bool writes_calls = false;  // the text is JSON of calls (LLaMA-Factory's role function_call)
};

/// Names of the keys with a message's role and text.
struct MessageKeys {
  std::string role, content;
  bool takes_pictures = false;  // parts may be pictures and videos
};

/// True if a message has calls, and therefore needs no text.
bool calls_tools(const nlohmann::ordered_json& message);

/// Reads a message, an object with a role:
///   content                                    text, or a list of parts {"type": "text", "text"},
///                                              and {"type": "image"} (image_url, video), which
///                                              become tags; null or missing only beside calls
///   tool_calls, function_call                  calls of an answer
///   reasoning_content, thinking, reasoning     thoughts of an answer
///   weight (0, 1), train (true, false)         training of an answer; other roles are not trained
///   name, tool_call_id                         of a tool's result
/// Counts unread keys. Throws RowError with `place` for other values of these keys, and for
/// contradictions.
Message read_message_parts(const nlohmann::ordered_json& message, const MessageKeys& keys,
                           const Speaker& speaker, const std::string& place, UnreadKeys& unread);

}  // namespace longspan
