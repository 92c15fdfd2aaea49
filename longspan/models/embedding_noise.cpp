#include "longspan/models/embedding_noise.h"

#include <ATen/ATen.h>

#include <cmath>
#include <vector>

#include "longspan/kernels/dropout.h"
#include "longspan/memory/transfer.h"

namespace longspan {
namespace {

/// Key of the embedding's noise; LoRA's layers count from 0, and a value head has ~0.
constexpr uint64_t kNoiseUse = ~uint64_t{1};

}  // namespace

void add_embedding_noise(const at::Tensor& h_TD, const Batch& batch, double alpha, uint64_t seed) {
  if (batch.example_lengths.empty()) return;  // an idle row
  std::vector<double> bounds;
  for (const int64_t length : batch.example_lengths) {
    bounds.push_back(alpha / std::sqrt(static_cast<double>(length * h_TD.size(1))));
  }
  const at::Tensor by_example = sent_to(at::tensor(bounds, at::kDouble), h_TD.device());
  const at::Tensor bounds_T = by_example.index_select(0, batch.documents_T.clamp_min(0));
  add_uniform_noise_(h_TD, token_keys(batch), bounds_T, mix_seed(seed, kNoiseUse));
}

}  // namespace longspan
