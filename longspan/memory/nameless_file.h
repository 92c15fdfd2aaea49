// Temporary files without a name. No torch.
#pragma once

#include <string>

namespace longspan {

/// Opens a new file in `folder` for reading and writing. The file has no name, so it disappears
/// with its last descriptor, however the process ends. Returns the descriptor, or -1 with errno.
int open_nameless(const std::string& folder);

}  // namespace longspan
