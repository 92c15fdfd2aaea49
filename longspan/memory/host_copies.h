// Copies of tensors at one moment, in host memory.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <vector>

namespace longspan {

/// Copies tensors of a device into memory of empty_on_host(). Keeps the memory for later copies of
/// the same sizes.
class HostCopies {
 public:
  explicit HostCopies(at::Device device) : device_(device) {}
  HostCopies(const HostCopies&) = delete;
  HostCopies& operator=(const HostCopies&) = delete;

  /// Returns a contiguous copy in `dtype`. With CUDA the copy is complete after wait(). Throws
  /// UserError when the host is out of memory.
  at::Tensor add(const at::Tensor& tensor, at::ScalarType dtype);
  /// Returns once all copies are complete.
  void wait() const;
  /// The next copies take the memory of the earlier copies, in the same order. The earlier copies
  /// must not be in use.
  void restart() { next_ = 0; }

 private:
  at::Device device_;
  std::vector<at::Tensor> blocks_;  // 1-D
  size_t next_ = 0;                 // block of the next copy
};

}  // namespace longspan
