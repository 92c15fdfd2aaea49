// Device tensors as kernels see them.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>

#include "longspan/testing/accelerator/machine.h"

namespace longspan::testing::accelerator {

/// Returns the bytes from a tensor's first element to its last.
Use use_of(const at::Tensor& x, bool writes);

/// Makes CPU tensors over the memory of device tensors, and maps CPU tensors back to device
/// tensors. The device tensors must outlive the CPU tensors.
class KernelSide {
 public:
  /// Returns undefined tensors and unpinned CPU tensors unchanged.
  at::Tensor of(const at::Tensor& x);
  /// True if the tensor is over the memory of a given tensor.
  bool is_view(const at::Tensor& x) const;
  /// Returns the device tensor that corresponds to this view.
  at::Tensor view_of(const at::Tensor& x) const;

 private:
  struct Pair {
    c10::Storage of_device, of_kernel;
  };
  std::map<const c10::StorageImpl*, Pair> by_device_;
  std::map<const c10::StorageImpl*, const Pair*> by_kernel_;
};

/// Returns a new device tensor with the values of a CPU tensor, for the result of a launch.
at::Tensor adopted(const at::Tensor& x, at::Device device, const Launched& launched);

at::Tensor empty_on_device(at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType dtype,
                           at::Device device);

}  // namespace longspan::testing::accelerator
