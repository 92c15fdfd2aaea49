// AdamW with 8-bit moments.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "longspan/optim/adamw.h"

namespace longspan {

/// AdamW with block-wise quantized moments (arXiv 2110.02861). Each update restores a block of
/// moments, updates the block in fp32, applies the update to the values and quantizes the block
/// again. Parameters of fewer than kMinQuantized elements use plain AdamW. state() returns restored
/// fp32 moments; load_state() of the same shard restores every code exactly.
class AdamW8bit : public Optimizer {
 public:
  static constexpr int64_t kMinQuantized = 4096;

  AdamW8bit(const std::vector<ParameterShard>& shards, const AdamWOptions& options,
            const AllocateLike& allocate = {});

  void step(double learning_rate) override;
  std::vector<StateSource> state() const override;
  void load_state(size_t i, const StateShard& shard) override;

 private:
  struct Quantized {
    ParameterShard shard;
    at::Tensor first_codes, second_codes;    // uint8, one per element
    at::Tensor first_scales, second_scales;  // fp32, one per block
    int64_t num_steps = 0;
  };
  void update(Quantized& quantized, double learning_rate) const;

  AdamWOptions options_;
  std::vector<std::pair<bool, size_t>> places_;  // in the order of state(): is quantized, index
  std::vector<Quantized> quantized_;
  std::unique_ptr<AdamW> small_;
};

}  // namespace longspan
