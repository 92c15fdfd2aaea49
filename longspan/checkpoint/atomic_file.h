// Files that are whole or absent. No torch.
#pragma once

#include <string>
#include <string_view>

namespace longspan {

/// Writes to a temporary name in the same folder, fsyncs, renames over `path`. Throws UserError
/// (path, reason, remedy).
void write_file_atomically(const std::string& path, std::string_view content);

}  // namespace longspan
