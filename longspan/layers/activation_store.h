// Where checkpointed blocks keep what their backward needs, when not on the device.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>
#include <vector>

namespace longspan {

/// What one block keeps. Freed when it dies.
class SavedTensors {
 public:
  virtual ~SavedTensors() = default;
  /// Tensor i of those that were put, ready to compute with; maybe another copy at each call. The
  /// caller does not write to it.
  virtual at::Tensor get(size_t i) = 0;
  /// Attention's backward begins, the longest work of a block: what was put before this and is
  /// asked for next may be on its way meanwhile.
  virtual void read_previous_ahead() = 0;
};

/// Takes tensors of the forward, block by block; the backward asks in the reverse order.
class ActivationStore {
 public:
  virtual ~ActivationStore() = default;
  /// The caller drops its tensors, so that the device's memory is free when they are stored.
  /// `briefly`: they are asked for before the backward goes on to another block.
  virtual std::shared_ptr<SavedTensors> put(std::vector<at::Tensor> tensors,
                                            bool briefly = false) = 0;
};

}  // namespace longspan
