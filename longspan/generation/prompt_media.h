// The pictures and videos of a prompt. No torch.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "longspan/data/conversation.h"

namespace longspan {

/// Finds the files of the prompt's pictures and videos, in the order of their tags:
///   <image:PATH>, <video:PATH>   in a text: the file itself; PATH has an ending or a slash
///   <image>, <video>             in a text: the next file of the row's columns images and videos
///   parts of messages            as in data sets (read_message_parts)
/// A text keeps <image> and <video> as they are where the prompt has no file at all. Paths begin at
/// `folder`, or else at the current folder. Throws RowError: no such file, numbers of tags and
/// files that differ, a tag in a system message.
void place_prompt_media(const nlohmann::ordered_json& row, const std::string& folder,
                        Conversation& prompt);

}  // namespace longspan
