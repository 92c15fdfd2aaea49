// The global gradient norm and clipping. More exact than torch.nn.utils.clip_grad_norm_, which sums
// squares in fp32 on the CPU: the relative error of torch is 1e-4 at some millions of elements, and
// some percent at 1e8.
#pragma once

#include <string>
#include <vector>

#include "longspan/parameters/named_tensor.h"

namespace longspan {

/// Returns the sum of squares of all gradients, accumulated in fp64: [1] on `device`, without a
/// host sync. The gradients may mix fp32, bf16 and fp64, on the host and on `device`; undefined
/// gradients count as 0. On the CPU the result does not depend on the number of threads.
at::Tensor sum_of_squares(const std::vector<at::Tensor>& gradients, at::Device device);

/// Returns the square root of the sum of squares of all gradients. Missing gradients count as 0.
double global_gradient_norm(const std::vector<NamedTensor>& parameters);

/// Returns the names of the parameters with a NaN or infinity in their gradient.
std::vector<std::string> nonfinite_gradients(const std::vector<NamedTensor>& parameters);

/// Scales gradients by min(1, max_norm / (norm + 1e-6)).
void clip_gradients(const std::vector<NamedTensor>& parameters, double norm, double max_norm);

}  // namespace longspan
