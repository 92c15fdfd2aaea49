// Stores what checkpointed blocks save for their backward elsewhere than on the device.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>
#include <vector>

namespace longspan {

/// The tensors that one block has saved. Their memory is freed when this object dies.
class SavedTensors {
 public:
  virtual ~SavedTensors() = default;
  /// Tensor i of those that were put, ready to compute with; maybe another copy at each call. The
  /// caller does not write to it.
  virtual at::Tensor get(size_t i) = 0;
  /// Call it when the block's attention backward begins, its longest work: the store may meanwhile
  /// prefetch the tensors that were put before these, which the backward asks for next.
  virtual void read_previous_ahead() = 0;
};

/// Takes tensors of the forward, block by block; the backward asks in the reverse order.
class ActivationStore {
 public:
  virtual ~ActivationStore() = default;
  /// Stores the tensors of a block. The caller drops them, so that their memory on the device is
  /// free once they are stored. `briefly`: they are asked for in the backward of the same block.
  virtual std::shared_ptr<SavedTensors> put(std::vector<at::Tensor> tensors,
                                            bool briefly = false) = 0;
};

}  // namespace longspan
