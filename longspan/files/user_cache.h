// The user's cache folder. No torch.
#pragma once

#include <string>

namespace longspan {

/// Returns the folder of Longspan's caches: $XDG_CACHE_HOME/longspan, or ~/.cache/longspan. ""
/// where neither is known.
std::string user_cache_folder();

}  // namespace longspan
