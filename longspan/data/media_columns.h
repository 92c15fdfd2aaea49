// The files of pictures and videos that a row of a data set names. No torch.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "longspan/data/conversation.h"
#include "longspan/data/dataset_info.h"

namespace longspan {

/// Assigns a file to each tag of the conversation's messages: the next file of the columns images
/// and videos, or the file in a part of the message. In a pair, the tags of the chosen answer and
/// the tags of the rejected answer each continue after the files of the question. Relative paths
/// begin at the entry's media_dir, or, if there is no such file, at the current folder, as in
/// LLaMA-Factory. Tags stay plain text if the entry lists no such column and no message has a part
/// with a picture. Throws RowError with the conversation's source: different numbers of tags and
/// files, a missing file, an address or data in place of a file, a video that is neither a file nor
/// a folder or list of frames.
void place_pictures(const DatasetEntry& entry, const nlohmann::ordered_json& row,
                    Conversation& conversation);

/// Reads the file that a message's part names ("image", "image_url", "video"): a path, a list of
/// frames, or {"url": ...}. `place`: the name of the part in errors.
MessagePicture picture_of_part(const nlohmann::ordered_json& part, const std::string& type,
                               const std::string& place);

}  // namespace longspan
