// Stores checkpointed activations in host memory or in a file.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>

#include "longspan/memory/activation_store.h"

namespace longspan {

/// Copies overlap with computation. The device holds the stored tensors of at most three blocks:
/// one being copied out, one in use by the backward and one being prefetched. On a GPU, streams
/// wait for the copies. The host waits only for pinned memory, when a row is larger than all rows
/// before it, and for the disk. The store may be destroyed before its tensors. Values are stored
/// exactly.
class ActivationOffload : public ActivationStore {
 public:
  /// Stores in host memory or, if `folder` is not empty, in an unnamed file there. With a file, the
  /// host holds only the two blocks being copied, and tensors put with `briefly`. Throws UserError
  /// if the file cannot be made.
  explicit ActivationOffload(at::Device device, const std::string& folder = "");
  /// `ahead`: prefetch the previous block's activations during the attention backward of the
  /// current block (default on CUDA). On the CPU, copies compete with the computation for cores and
  /// bandwidth, so the CPU's default prefetches only from a file, into host memory.
  ActivationOffload(at::Device device, const std::string& folder, bool ahead);
  ~ActivationOffload() override;

  std::shared_ptr<SavedTensors> put(std::vector<at::Tensor> tensors, bool briefly = false) override;

  /// Peak bytes in the file; 0 without a file.
  int64_t peak_file_bytes() const;

  struct Shared;

 private:
  std::shared_ptr<Shared> shared_;
};

}  // namespace longspan
