// Reads and writes safetensors files.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "longspan/checkpoint/safetensors_header.h"
#include "longspan/files/atomic_file.h"
#include "longspan/parameters/named_tensor.h"

namespace longspan {

/// One file. Tensors are read on request into their own memory. The file is closed between reads,
/// so any number of objects may exist.
class SafetensorsFile {
 public:
  /// Reads and checks the header. Throws UserError for a missing, truncated or corrupt file: checks
  /// the header's size, JSON, offsets, overlaps and dtypes, and the file's length.
  explicit SafetensorsFile(std::string path);

  const std::string& path() const { return path_; }
  /// In the order of the data.
  const std::vector<SafetensorsEntry>& entries() const { return entries_; }

  /// Reads a tensor to the CPU. Converts the tensor to `dtype` a few megabytes at a time. Throws
  /// UserError where the file changed since the header was read, or where the machine lacks memory.
  at::Tensor read(const SafetensorsEntry& entry,
                  std::optional<at::ScalarType> dtype = std::nullopt) const;
  /// Reads numbers [begin, end) of a tensor, in storage order, into the 1-D CPU tensor `to`, which
  /// has end - begin numbers of any dtype. Throws UserError as above.
  void read_run(const SafetensorsEntry& entry, int64_t begin, int64_t end,
                const at::Tensor& to) const;

 private:
  std::string path_;
  int64_t size_ = 0;
  std::vector<SafetensorsEntry> entries_;
};

/// Returns all tensors of a file. Throws UserError as SafetensorsFile does.
std::vector<NamedTensor> read_safetensors(const std::string& path);

/// Writes a file one tensor at a time, so that not all tensors need to be in memory. The file has a
/// temporary name until commit(), which fsyncs and renames the file. Members throw UserError where
/// the disk is full or the folder read-only.
class SafetensorsWriter {
 public:
  struct Planned {
    std::string name;
    at::ScalarType dtype;
    std::vector<int64_t> shape;
  };
  SafetensorsWriter(const std::string& path, std::vector<Planned> planned);
  /// Writes the next planned tensor, or the next rows of this tensor or of its matrices, from any
  /// device and dtype.
  void write(const at::Tensor& tensor);
  void commit();

 private:
  AtomicFile file_;
  std::vector<Planned> planned_;
  size_t next_ = 0;
  int64_t num_written_ = 0;  // elements of the next tensor that are already written
};

/// Writes tensors from any device to a temporary name in the same folder, fsyncs and renames.
/// Converts the tensors to `dtype`, one at a time, where `dtype` is given. metadata: {"format":
/// "pt"}. Throws UserError where the disk is full or the folder read-only; after an error, an
/// existing file is unchanged, and no partial file is left.
void write_safetensors(const std::string& path, const std::vector<NamedTensor>& tensors,
                       std::optional<at::ScalarType> dtype = std::nullopt);

}  // namespace longspan
