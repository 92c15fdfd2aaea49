// AdamW with decoupled weight decay (arXiv 1711.05101), torch's fused step.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <vector>

#include "longspan/models/decoder.h"

namespace longspan {

struct AdamWOptions {
  double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8, weight_decay = 0.0;
};

/// Is this parameter decayed? Biases and norm weights are not, by their Hugging Face names, as in
/// transformers.
bool is_decayed(const std::string& parameter_name);

class AdamW {
 public:
  /// Takes the parameters that require a gradient. First and second moments live in the
  /// parameter's dtype, on its device.
  AdamW(const std::vector<NamedTensor>& parameters, const AdamWOptions& options);
  /// One update from the gradients that are there; parameters without one are left alone.
  void step(double learning_rate);
  /// Drops the gradients; the next backward makes fresh ones.
  void zero_grad();

 private:
  /// Parameters that share a weight decay.
  struct ParameterGroup {
    double weight_decay = 0.0;
    std::vector<at::Tensor> parameters, first_moments, second_moments, steps;
  };
  AdamWOptions options_;
  std::array<ParameterGroup, 2> groups_;
};

}  // namespace longspan
