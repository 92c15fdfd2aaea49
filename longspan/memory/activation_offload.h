// Checkpointed activations in host memory or in a file.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>

#include "longspan/layers/activation_store.h"

namespace longspan {

/// Copies run beside the device's computation. The device holds the stored tensors of three blocks
/// at most: one that is copied out, one that the backward works on and one that is prefetched. A
/// GPU's streams wait for that, and no host: the host waits only for pinned memory, where a row is
/// larger than those before it, and for a file until the disk has taken what went before. The
/// store may be destroyed before the tensors that it holds. Values stay unchanged.
class ActivationOffload : public ActivationStore {
 public:
  /// Stores in host memory or, where a folder is given, in a file there that nobody else sees; the
  /// host then holds the two blocks that are being copied, and what is put briefly. Throws
  /// UserError where no file can be made in the folder.
  explicit ActivationOffload(at::Device device, const std::string& folder = "");
  /// `ahead`: prefetch the next block's activations during the current block's attention backward
  /// (default on CUDA). On the CPU, copies take cores and bandwidth from the computation, so that
  /// by default only a file is read ahead, into host memory.
  ActivationOffload(at::Device device, const std::string& folder, bool ahead);
  ~ActivationOffload() override;

  std::shared_ptr<SavedTensors> put(std::vector<at::Tensor> tensors, bool briefly = false) override;

  /// The most that the file held at once; 0 without one.
  int64_t peak_file_bytes() const;

  struct Shared;

 private:
  std::shared_ptr<Shared> shared_;
};

}  // namespace longspan
