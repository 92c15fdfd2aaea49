// safetensors files: header by JSON, data by mmap.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "longspan/checkpoint/atomic_file.h"
#include "longspan/models/decoder.h"

namespace longspan {

/// One line of a header. Offsets are in bytes from the start of the file.
struct SafetensorsEntry {
  std::string name;
  at::ScalarType dtype;
  std::vector<int64_t> shape;
  int64_t begin, end;
};

/// The header alone, fully checked against the length of the file, in the order of the data.
/// Throws UserError as read_safetensors does.
std::vector<SafetensorsEntry> read_safetensors_header(const std::string& path);

/// Tensors of one file, memory-mapped copy-on-write (never written back); they keep the mapping
/// alive. Throws UserError for a missing, truncated or corrupt file (header size, JSON, offsets,
/// overlaps, dtype, file length are all checked).
std::vector<NamedTensor> read_safetensors(const std::string& path);

/// A file that is written tensor by tensor, so that they need not all be there at once: under a
/// temporary name until commit(), which fsyncs and renames. Members throw UserError when the disk
/// is full or the folder read-only.
class SafetensorsWriter {
 public:
  struct Planned {
    std::string name;
    at::ScalarType dtype;
    std::vector<int64_t> shape;
  };
  SafetensorsWriter(const std::string& path, std::vector<Planned> planned);
  /// The next of the planned ones, from any device and in any dtype.
  void write(const at::Tensor& tensor);
  void commit();

 private:
  AtomicFile file_;
  std::vector<Planned> planned_;
  size_t next_ = 0;
};

/// Writes to a temporary name in the same folder, fsyncs, renames. Throws UserError when the disk
/// is full or the folder read-only; leaves nothing half-written and an existing file untouched.
/// metadata: {"format": "pt"}. Tensors are converted to `dtype` one at a time, if given, and come
/// from any device.
void write_safetensors(const std::string& path, const std::vector<NamedTensor>& tensors,
                       std::optional<at::ScalarType> dtype = std::nullopt);

}  // namespace longspan
