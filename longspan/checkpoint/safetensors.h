// safetensors files, in and out.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "longspan/checkpoint/atomic_file.h"
#include "longspan/checkpoint/safetensors_header.h"
#include "longspan/parameters/named_tensor.h"

namespace longspan {

/// One file, of which tensors are read as they are asked for, into memory of their own. Between
/// reads it is not open, so that any number of them may be at hand.
class SafetensorsFile {
 public:
  /// Reads and checks the header. Throws UserError for a missing, truncated or corrupt file (header
  /// size, JSON, offsets, overlaps, dtype, file length are all checked).
  explicit SafetensorsFile(std::string path);

  const std::string& path() const { return path_; }
  /// In the order of the data.
  const std::vector<SafetensorsEntry>& entries() const { return entries_; }

  /// A tensor of the file on the CPU, as it is or converted to `dtype` a few megabytes at a time.
  /// Throws UserError when the file is not what it was when the header was read, and when the
  /// machine has not so much memory.
  at::Tensor read(const SafetensorsEntry& entry,
                  std::optional<at::ScalarType> dtype = std::nullopt) const;
  /// Numbers [begin, end) of a tensor, counted as they lie, into the 1-D `to` on the CPU, which has
  /// as many and any dtype. Throws UserError as above.
  void read_run(const SafetensorsEntry& entry, int64_t begin, int64_t end,
                const at::Tensor& to) const;

 private:
  std::string path_;
  int64_t size_ = 0;
  std::vector<SafetensorsEntry> entries_;
};

/// All tensors of one file. Throws UserError as SafetensorsFile does.
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
  /// The next of the planned ones, or its next rows, from any device and in any dtype.
  void write(const at::Tensor& tensor);
  void commit();

 private:
  AtomicFile file_;
  std::vector<Planned> planned_;
  size_t next_ = 0;
  int64_t rows_written_ = 0;  // of the next
};

/// Writes to a temporary name in the same folder, fsyncs, renames. Throws UserError when the disk
/// is full or the folder read-only; leaves nothing half-written and an existing file untouched.
/// metadata: {"format": "pt"}. Tensors are converted to `dtype` one at a time, if given, and come
/// from any device.
void write_safetensors(const std::string& path, const std::vector<NamedTensor>& tensors,
                       std::optional<at::ScalarType> dtype = std::nullopt);

}  // namespace longspan
