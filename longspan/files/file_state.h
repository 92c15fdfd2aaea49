// The state of a file, for caches of contents. No torch.
#pragma once

#include <string>

namespace longspan {

/// Returns a text of the file's path, size and time of the last write. The text changes if the file
/// is written. The file may be missing.
std::string file_state(const std::string& path);

}  // namespace longspan
