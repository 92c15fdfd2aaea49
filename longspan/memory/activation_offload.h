// Checkpointed activations in host memory or in a file.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>

#include "longspan/models/activation_store.h"

namespace longspan {

/// Copies run under the computation of the device. Of what was put, the device holds the block that
/// is leaving, the block that the backward works on and the one that is read ahead; the store may
/// die before what was put into it. Numbers are kept as they are.
class ActivationOffload : public ActivationStore {
 public:
  /// In host memory, or where a folder is given in a file there that nobody else sees: the host
  /// then holds two blocks on their way, and what is put briefly. Throws UserError where the folder
  /// takes no file.
  explicit ActivationOffload(at::Device device, const std::string& folder = "");
  /// `ahead`: a block returns to the device while the one above it attends, as by the above on
  /// CUDA. On the CPU copies take what the computation needs, cores and bandwidth, and only a file
  /// is read ahead, into host memory.
  ActivationOffload(at::Device device, const std::string& folder, bool ahead);
  ~ActivationOffload() override;

  std::shared_ptr<KeptTensors> put(std::vector<at::Tensor> tensors, bool briefly = false) override;

  /// The most that the file held at once; 0 without one.
  int64_t peak_file_bytes() const;

  struct Shared;

 private:
  std::shared_ptr<Shared> shared_;
};

}  // namespace longspan
