// AdamW with decoupled weight decay (arXiv 1711.05101), torch's fused step.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "longspan/optim/optimizer.h"

namespace longspan {

struct OptimizationSettings;

struct AdamWOptions {
  double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8, weight_decay = 0.0;
};

AdamWOptions adamw_options_of(const OptimizationSettings& config);

class AdamW : public Optimizer {
 public:
  /// First and second moments have the dtype of the values. The moments live on the values' device,
  /// or on the device that `allocate` chooses.
  AdamW(std::vector<ParameterShard> shards, const AdamWOptions& options,
        const AllocateLike& allocate = {});

  void step(double learning_rate) override;
  std::vector<StateSource> state() const override;
  void load_state(size_t i, const StateShard& shard) override;
  /// Drops the gradients; the next backward allocates new ones.
  void zero_grad();

 private:
  struct Trained {
    ParameterShard shard;
    at::Tensor first_moment, second_moment;  // of the values' shape
    at::Tensor num_steps;                    // fp32, as the fused kernel requires
  };
  void update(const std::vector<Trained*>& trained, double learning_rate, double weight_decay);

  AdamWOptions options_;
  std::vector<Trained> trained_;
};

}  // namespace longspan
