#include "longspan/spec/mixture_of_experts_spec.h"

#include <fmt/format.h>

#include <algorithm>

namespace longspan {
namespace {

/// Rows of a chunk for each of which there are as many experts as a token goes to: what an expert
/// gets of a chunk, were all alike.
constexpr int64_t kMinExpertRows = 256;

}  // namespace

void list_parameters(const MixtureOfExpertsSpec& mixture, LayerParameters& list) {
  const int64_t D = list.hidden_size();
  const auto gated_mlp = [&](const std::string& part, int64_t size) {
    list.linear_of_part("mlp", part, "gate_proj", size, D);
    list.linear_of_part("mlp", part, "up_proj", size, D);
    list.linear_of_part("mlp", part, "down_proj", D, size);
  };
  list.router("mlp", "mlp.gate", mixture.num_experts);
  if (mixture.router.has_correction_bias) {
    list.buffer("mlp", "mlp.gate.e_score_correction_bias", mixture.num_experts);
  }
  for (int64_t expert = 0; expert < mixture.num_experts; ++expert) {
    gated_mlp(fmt::format("experts.{}", expert), mixture.expert_size);
  }
  if (!mixture.has_shared()) return;
  gated_mlp(mixture.shared.name, mixture.shared.intermediate_size);
  if (mixture.shared.is_gated) {
    list.linear("mlp", (mixture.shared.name + "_gate").c_str(), 1, D, /*bias=*/false);
  }
}

FeedForwardCost cost_of(const MixtureOfExpertsSpec& mixture, int64_t hidden_size) {
  const int64_t E = mixture.num_experts, k = mixture.experts_per_token, D = hidden_size;
  const int64_t I = mixture.expert_size, S = mixture.shared.intermediate_size;
  const int64_t expert = 3 * I * D, shared = 3 * S * D;
  FeedForwardCost cost;
  cost.width = std::max(I, S);
  cost.min_chunk_rows = kMinExpertRows * ((E + k - 1) / k);
  // Gate and up are computed again for the backward, an expert at a time: at most all rows of the
  // chunk, with their inputs and gradients. Scores and their gradients are in fp32.
  cost.saved = 0;
  cost.working = std::max(4 * I + 3 * D, 3 * S) + D + 4 * E;
  cost.matrices = {E * expert + shared, std::max(I, S) * D};
  cost.cast_at_once = expert + shared;
  cost.idle_matrices = (E - k) * expert;
  return cost;
}

}  // namespace longspan
