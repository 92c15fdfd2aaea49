// The arguments of a kernel of the simulated accelerator.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

#include "longspan/testing/accelerator/machine.h"

namespace longspan::testing::accelerator {

/// The work of a kernel after its launch has begun.
using Compute = std::function<void()>;

template <typename Argument>
const Argument& as(const void* argument) {
  return *static_cast<const Argument*>(argument);
}

/// Arguments of a launch: makes CPU tensors over the memory behind device addresses, and records
/// each tensor as read or written.
class Arguments {
 public:
  at::Tensor read(const void* front, at::IntArrayRef sizes, at::ScalarType dtype,
                  at::IntArrayRef strides = {}) {
    return view(front, sizes, dtype, strides, /*writes=*/false);
  }
  at::Tensor write(void* front, at::IntArrayRef sizes, at::ScalarType dtype,
                   at::IntArrayRef strides = {}) {
    return view(front, sizes, dtype, strides, /*writes=*/true);
  }
  at::Tensor change(void* front, at::IntArrayRef sizes, at::ScalarType dtype) {
    read(front, sizes, dtype);
    return write(front, sizes, dtype);
  }
  /// Undefined if the address is null.
  at::Tensor read_if_any(const void* front, at::IntArrayRef sizes, at::ScalarType dtype) {
    return front == nullptr ? at::Tensor() : read(front, sizes, dtype);
  }

  const std::vector<Use>& uses() const { return uses_; }

 private:
  at::Tensor view(const void* front, at::IntArrayRef sizes, at::ScalarType dtype,
                  at::IntArrayRef strides, bool writes);

  std::vector<Use> uses_;
};

}  // namespace longspan::testing::accelerator
