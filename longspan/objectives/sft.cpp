#include "longspan/objectives/sft.h"

#include <ATen/ATen.h>

namespace longspan {

at::Tensor sft_loss(Decoder& model, const Batch& local, int64_t global_label_count,
                    const LossFactors& factors) {
  TORCH_CHECK(global_label_count > 0, "a step needs at least one label");
  const auto count = static_cast<double>(global_label_count);
  return model.negative_log_likelihood_sum(local, /*upstream=*/1.0 / count, factors) / count;
}

at::Tensor dft_factors(const LossChunk& chunk) { return chunk.nll_C.neg().exp_(); }

}  // namespace longspan
