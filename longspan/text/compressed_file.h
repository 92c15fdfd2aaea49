// Opens files that may be compressed (.gz: gzip, .zst: zstd), as their endings say. No torch.
// (Backed by the `flate2` and `zstd` crates, see rust/.)
#pragma once

#include <string>
#include <string_view>

#include "longspan/input/input_file.h"

namespace longspan {

/// Returns the ending that says that a file is compressed, ".gz" or ".zst"; "" for other files.
std::string_view compression_ending(std::string_view path);

/// Opens a file whose read() gives the decompressed bytes. Throws UserError as InputFile does;
/// read() also throws UserError where the compressed data is broken or ends early.
InputFile open_decompressed(const std::string& path, std::string_view what);

}  // namespace longspan
