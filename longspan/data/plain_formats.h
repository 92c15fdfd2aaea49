// Templates of ordinary text, without special tokens. No torch.
#pragma once

#include <string_view>
#include <vector>

#include "longspan/data/template_format.h"

namespace longspan {

/// A frame of one text, and of one text with the end token after it.
inline Frame text(std::string_view frame) { return {{Slot::kText, frame}}; }
inline Frame ended(std::string_view frame) { return {{Slot::kText, frame}, {Slot::kEos}}; }

std::vector<Format> plain_formats();

}  // namespace longspan
