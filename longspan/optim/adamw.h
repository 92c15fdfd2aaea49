// AdamW with decoupled weight decay (arXiv 1711.05101), torch's fused step.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "longspan/models/decoder.h"

namespace longspan {

struct AdamWOptions {
  double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8, weight_decay = 0.0;
};

class AdamW {
 public:
  /// Biases and norm weights are not decayed, as in transformers.
  AdamW(const std::vector<NamedTensor>& parameters, const AdamWOptions& options);
  void step(double learning_rate);
  void zero_grad();

 private:
  AdamWOptions options_;
  std::vector<at::Tensor> decayed_, undecayed_;
  std::vector<at::Tensor> first_decayed_, second_decayed_, first_undecayed_, second_undecayed_;
  std::vector<at::Tensor> steps_decayed_, steps_undecayed_;
};

/// sqrt of the sum of squares of all gradients, in fp32 (fp64 for fp64), as
/// torch.nn.utils.clip_grad_norm_ computes it.
double global_gradient_norm(const std::vector<NamedTensor>& parameters);
/// Scales gradients by min(1, max_norm / (norm + 1e-6)).
void clip_gradients(const std::vector<NamedTensor>& parameters, double norm, double max_norm);

}  // namespace longspan
