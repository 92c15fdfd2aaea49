// AdamW whose moments take 8 bits each.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "longspan/optim/adamw.h"

namespace longspan {

/// AdamW with block-wise quantized moments (arXiv 2110.02861): restored, updated in fp32, used, and
/// quantized again, a block at a time. Parameters of fewer than kMinQuantized numbers have moments
/// as AdamW has them. Pieces of state() have moments restored in fp32; load_state() of the same
/// pieces brings back every code.
class AdamW8bit : public Optimizer {
 public:
  static constexpr int64_t kMinQuantized = 4096;

  AdamW8bit(const std::vector<ParameterPiece>& pieces, const AdamWOptions& options,
            const AllocateLike& allocate = {});

  void step(double learning_rate) override;
  std::vector<StateSource> state() const override;
  void load_state(size_t i, const StatePiece& piece) override;

 private:
  struct Quantized {
    ParameterPiece piece;
    at::Tensor first_codes, second_codes;    // uint8, a number each
    at::Tensor first_scales, second_scales;  // fp32, a block each
    int64_t num_steps = 0;
  };
  void update(Quantized& quantized, double learning_rate) const;

  AdamWOptions options_;
  std::vector<std::pair<bool, size_t>> places_;  // of all in the order of state(): quantized, where
  std::vector<Quantized> quantized_;
  std::unique_ptr<AdamW> small_;
};

}  // namespace longspan
