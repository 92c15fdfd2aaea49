// The global gradient norm and clipping by it, as torch.nn.utils.clip_grad_norm_.
#pragma once

#include <string>
#include <vector>

#include "longspan/models/decoder.h"

namespace longspan {

/// sqrt of the sum of squares of all gradients; each gradient's norm in fp32 (fp64 for fp64), the
/// sum over gradients in fp64. Parameters without a gradient count as 0.
double global_gradient_norm(const std::vector<NamedTensor>& parameters);

/// Names of the parameters whose gradient has a NaN or an infinity in it, or such a norm.
std::vector<std::string> nonfinite_gradients(const std::vector<NamedTensor>& parameters);

/// Scales gradients by min(1, max_norm / (norm + 1e-6)).
void clip_gradients(const std::vector<NamedTensor>& parameters, double norm, double max_norm);

}  // namespace longspan
