#include "longspan/spec/mixture_of_experts_spec.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

namespace longspan {
namespace {

/// Rows of a chunk for each of which there are as many experts as a token goes to: what an expert
/// gets of a chunk, were all alike.
constexpr int64_t kMinExpertRows = 256;

}  // namespace

void list_parameters(const MixtureOfExpertsSpec& mixture, LayerParameters& list) {
  const int64_t D = list.hidden_size();
  const int64_t E = mixture.num_experts, I = mixture.expert_size;
  const auto gated_mlp = [&](const std::string& part, int64_t size, bool bias,
                             std::optional<ExpertNumber> expert) {
    list.linear_of_part("mlp", part, "gate_proj", size, D, bias, expert);
    list.linear_of_part("mlp", part, "up_proj", size, D, bias, expert);
    list.linear_of_part("mlp", part, "down_proj", D, size, bias, expert);
  };
  const std::string router = "mlp." + mixture.router.name;
  list.router("mlp", router, E, mixture.router.has_bias);
  if (mixture.router.has_correction_bias) {
    list.buffer("mlp", router + ".e_score_correction_bias", E);
  }
  if (mixture.stacked) {
    list.stacked_linears("mlp", "experts", "gate_up_proj", E, 2 * I, D, mixture.bias);
    list.stacked_linears("mlp", "experts", "down_proj", E, D, I, mixture.bias);
  } else {
    for (int64_t expert = 0; expert < E; ++expert) {
      gated_mlp(fmt::format("experts.{}", expert), I, mixture.bias, ExpertNumber{expert, E});
    }
  }
  if (!mixture.has_shared()) return;
  gated_mlp(mixture.shared.name, mixture.shared.intermediate_size, /*bias=*/false, std::nullopt);
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
  // chunk, with their inputs and gradients; where one matrix makes both, they lie there in turns as
  // well. Scores and their gradients are in fp32.
  cost.saved = 0;
  cost.working = std::max((mixture.stacked ? 6 : 4) * I + 3 * D, 3 * S) + D + 4 * E;
  cost.exchanged = 6 * k * D;
  cost.matrices = {E * expert + shared, std::max(I, S) * D};
  cost.cast_at_once = expert + shared;
  cost.idle_matrices = (E - k) * (expert + (mixture.bias ? 2 * I + D : 0));
  return cost;
}

}  // namespace longspan
