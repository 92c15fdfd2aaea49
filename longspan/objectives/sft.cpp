#include "longspan/objectives/sft.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <tuple>

namespace longspan {

at::Tensor sft_loss(Decoder& model, const Batch& local, int64_t global_label_count,
                    const LossFactors& factors) {
  TORCH_CHECK(global_label_count > 0, "a step needs at least one label");
  const auto count = static_cast<double>(global_label_count);
  return model.negative_log_likelihood_sum(local, /*upstream=*/1.0 / count, factors) / count;
}

at::Tensor dft_factors(const LossChunk& chunk) { return chunk.nll_C.neg().exp_(); }

at::Tensor eaft_factors(const LossChunk& chunk, double alpha) {
  constexpr int64_t kLargest = 20;
  const int64_t count = std::min(kLargest, chunk.logits_CV.size(1));
  const at::Tensor logprobs = std::get<0>(chunk.logits_CV.topk(count, 1)).log_softmax(1);
  return (logprobs.exp() * logprobs).sum(1).neg_().div_(3.0).pow_(alpha);
}

at::Tensor asft_loss(Decoder& model, const Batch& local, const TeacherHead& teacher, double alpha,
                     int64_t global_label_count, const LossFactors& visit) {
  TORCH_CHECK(global_label_count > 0, "a step needs at least one label");
  const at::Tensor both = model.logprobs_and_divergences(teacher, local, {.beta = 0}, visit);
  const at::Tensor logprobs_L = both.select(0, 0), divergences_L = both.select(0, 1);
  const at::Tensor terms_L = alpha * divergences_L - logprobs_L.detach().exp() * logprobs_L;
  return terms_L.sum() / static_cast<double>(global_label_count);
}

}  // namespace longspan
