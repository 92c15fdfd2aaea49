// safetensors files: header by JSON, data by mmap.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "longspan/models/decoder.h"

namespace longspan {

/// Tensors of one file, memory-mapped copy-on-write (never written back); they keep the mapping
/// alive. Throws UserError for a missing, truncated or corrupt file (header size, JSON, offsets,
/// overlaps, dtype, file length are all checked).
std::vector<NamedTensor> read_safetensors(const std::string& path);

/// Writes to a temporary name in the same folder, fsyncs, renames. Throws UserError when the disk
/// is full or the folder read-only; leaves nothing half-written and an existing file untouched.
/// metadata: {"format": "pt"}.
void write_safetensors(const std::string& path, const std::vector<NamedTensor>& tensors);

}  // namespace longspan
