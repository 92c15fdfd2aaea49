// A store, away from the device, for tensors that checkpointed blocks save for their backward.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>
#include <vector>

namespace longspan {

/// The saved tensors of one block. Their memory is freed with this object.
class SavedTensors {
 public:
  virtual ~SavedTensors() = default;
  /// Returns tensor i of the block, ready for computation; possibly a new copy at each call. The
  /// caller must not write to the tensor.
  virtual at::Tensor get(size_t i) = 0;
  /// Call where the block's attention backward, its longest work, begins. The store may prefetch
  /// the tensors of the previous put(), which the backward needs next.
  virtual void read_previous_ahead() = 0;
};

/// Takes tensors of the forward, block by block. The backward reads them in reverse order.
class ActivationStore {
 public:
  virtual ~ActivationStore() = default;
  /// Stores the tensors of a block. The caller drops its references, so that the device memory is
  /// free once the tensors are stored. `briefly`: the tensors are read again in the same block's
  /// backward.
  virtual std::shared_ptr<SavedTensors> put(std::vector<at::Tensor> tensors,
                                            bool briefly = false) = 0;
};

}  // namespace longspan
