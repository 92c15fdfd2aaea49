// The global gradient norm and clipping by it, as torch.nn.utils.clip_grad_norm_, but for the
// digits: torch sums squares in fp32 on a CPU, which is 1e-4 off at some millions of numbers and
// percents off at 1e8.
#pragma once

#include <string>
#include <vector>

#include "longspan/parameters/named_tensor.h"

namespace longspan {

/// Sum of the squares of all numbers of all gradients (any mix of fp32, bf16 and fp64, of the host
/// and of `device`), added up in fp64: [1], on the device, for which the host does not wait.
/// Undefined gradients count as 0. On a CPU the result does not depend on the number of threads.
at::Tensor sum_of_squares(const std::vector<at::Tensor>& gradients, at::Device device);

/// sqrt of the sum of squares of all gradients. Parameters without a gradient count as 0.
double global_gradient_norm(const std::vector<NamedTensor>& parameters);

/// Names of the parameters whose gradient has a NaN or an infinity in it.
std::vector<std::string> nonfinite_gradients(const std::vector<NamedTensor>& parameters);

/// Scales gradients by min(1, max_norm / (norm + 1e-6)).
void clip_gradients(const std::vector<NamedTensor>& parameters, double norm, double max_norm);

}  // namespace longspan
