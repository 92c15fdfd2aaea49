#include "longspan/spec/expert_gemms.h"

#include <algorithm>

#include "longspan/spec/device_sizes.h"
#include "longspan/spec/model_spec.h"

namespace longspan {

std::vector<UsedGemm> gemms_of_experts(const ModelSpec& model, int64_t expert_parallel_size,
                                       int64_t num_tokens) {
  std::vector<UsedGemm> gemms;
  for (const LayerSpec& layer : model.pattern) {
    const MixtureOfExpertsSpec* const experts = experts_of(layer);
    if (experts == nullptr) continue;
    const int64_t D = model.hidden_size, I = experts->expert_size,
                  E = experts->num_experts / expert_parallel_size;
    const FeedForwardCost cost = cost_of(*experts, D);
    if (cost.grouped.rows == 0) continue;
    // Rows that arrive from other ranks are sorted already, and computed at once.
    const bool moves = expert_parallel_size == 1;
    constexpr int64_t kBf16Bytes = 2;
    const int64_t chunk = std::max(
        cost.min_chunk_rows, kCudaSizes.feed_forward_bytes / (cost.grouped.width * kBf16Bytes));
    const int64_t most = moves ? std::min(num_tokens, chunk) : num_tokens,
                  num_rows = std::min(most * experts->experts_per_token, kMostMeasuredRows);
    const auto add = [&](int64_t depth, int64_t columns, bool transposed, bool picked,
                         bool placed) {
      const ExpertGemm gemm{E, depth, columns, transposed};
      if (std::ranges::count(gemms, gemm, &UsedGemm::gemm) > 0) return;
      gemms.push_back({gemm, num_rows, picked, placed});
    };
    if (!experts->bias) {
      add(D, experts->stacked ? 2 * I : I, /*transposed=*/false, moves, false);
      add(I, D, /*transposed=*/false, false, moves);
    }
    add(D, I, /*transposed=*/true, moves, false);
    // Two matrices give a sum of two products.
    if (experts->stacked) add(2 * I, D, /*transposed=*/true, false, moves);
  }
  return gemms;
}

}  // namespace longspan
