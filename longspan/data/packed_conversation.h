// Conversations as bytes, for files of the same run. No torch.
#pragma once

#include <string_view>

#include "longspan/data/conversation.h"
#include "longspan/data/packed_bytes.h"

namespace longspan {

/// Convert to and from bytes. The conversation has no pictures.
void pack(const Conversation& row, PackedBytes& to);
Conversation unpack_conversation(std::string_view bytes);

}  // namespace longspan
