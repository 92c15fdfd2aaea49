#include "longspan/spec/mixture_of_experts_spec.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace longspan {
namespace {

/// Chunks are so large that each expert gets this many rows if all get equally many.
constexpr int64_t kMinExpertRows = 256;

/// Returns the linear layers of an expert.
std::vector<std::string_view> linears_of(const MixtureOfExpertsSpec& mixture) {
  if (mixture.stacked) return {"gate_up_proj", "down_proj"};
  return {"gate_proj", "up_proj", "down_proj"};
}

/// The peak over three phases. First gate, up, act and its gradient of each row's experts, and if
/// stacked gate and up interleaved; then the gradients of gate and up together with those of the
/// rows; then the shared expert. Throughout: places of the rows, 8 bytes each, weights and their
/// gradients; scores and their gradients and the sum of input gradients in fp32.
GroupedCost grouped_cost(const MixtureOfExpertsSpec& mixture, int64_t hidden_size) {
  const int64_t E = mixture.num_experts, k = mixture.experts_per_token, D = hidden_size;
  const int64_t I = mixture.expert_size, S = mixture.shared.intermediate_size;
  if (D % kGroupedNumbers != 0 || I % kGroupedNumbers != 0) return {};
  const int64_t turns = mixture.stacked ? 2 * I : 0, made = 2 * I + turns;
  const int64_t places = k * (3 * 4 + 3 * 2), fp32 = 2 * (D + 4 * E);
  const int64_t at_most = std::max(k * std::max(4 * I + turns, made + D),
                                   std::max(3 * D, mixture.has_shared() ? 3 * S + 3 * D : 0));
  return {.rows = k,
          .width = std::max(k * I, S),
          .working = places + fp32 + at_most,
          // Rows and output gradients: outgoing, incoming and sorted by expert; then the last two
          // together with the experts' temporaries.
          .exchanged = places + fp32 + std::max(6 * k * D, 2 * k * D + at_most)};
}

}  // namespace

void list_parameters(const MixtureOfExpertsSpec& mixture, LayerParameters& list) {
  const int64_t D = list.hidden_size();
  const int64_t E = mixture.num_experts, I = mixture.expert_size;
  const std::string router = "mlp." + mixture.router.name;
  list.router("mlp", router, E, mixture.router.has_bias);
  if (mixture.router.has_correction_bias) {
    list.buffer("mlp", router + ".e_score_correction_bias", E);
  }
  if (mixture.stacked) {
    list.stacked_linears("mlp", "experts", "gate_up_proj", {2 * I, D, mixture.bias}, E);
    list.stacked_linears("mlp", "experts", "down_proj", {D, I, mixture.bias}, E);
  } else {
    const auto linear = [&](int64_t i, const char* name, int64_t num_out, int64_t num_in,
                            const RowsOfStack& stack) {
      list.linear_of_expert("mlp", "experts", name, {num_out, num_in, mixture.bias}, {i, E}, stack);
    };
    const auto gate_and_up = [&](int64_t i) {
      linear(i, "gate_proj", I, D, {.name = "gate_up_proj", .begin = 0, .num_rows = 2 * I});
      linear(i, "up_proj", I, D, {.name = "gate_up_proj", .begin = I, .num_rows = 2 * I});
    };
    const auto down = [&](int64_t i) {
      linear(i, "down_proj", D, I, {.name = "down_proj", .begin = 0, .num_rows = D});
    };
    if (mixture.stored_in_stacks) {  // the parts of a tensor are consecutive
      for (int64_t i = 0; i < E; ++i) gate_and_up(i);
      for (int64_t i = 0; i < E; ++i) down(i);
      list.store_in_stacks();
    } else {
      for (int64_t i = 0; i < E; ++i) {
        gate_and_up(i);
        down(i);
      }
    }
  }
  if (!mixture.has_shared()) return;
  const SharedExpertSpec& shared = mixture.shared;
  const int64_t S = shared.intermediate_size;
  list.linear_of_part("mlp", shared.name, "gate_proj", S, D, /*bias=*/false);
  list.linear_of_part("mlp", shared.name, "up_proj", S, D, /*bias=*/false);
  list.linear_of_part("mlp", shared.name, "down_proj", D, S, /*bias=*/false);
  if (shared.is_gated) {
    list.linear("mlp", (shared.name + "_gate").c_str(), 1, D, /*bias=*/false);
  }
}

void pass_over_unadapted(const MixtureOfExpertsSpec& mixture, std::vector<ParameterSpec>& layer) {
  const std::vector<std::string_view> names = linears_of(mixture);
  for (ParameterSpec& parameter : layer) {
    const bool in_mlp = std::ranges::find(names, parameter.lora_target) != names.end();
    const bool adapted =
        parameter.expert.has_value() == (mixture.adapters == MlpAdapters::kExperts);
    if (!in_mlp || adapted) continue;
    parameter.passed_over_target = std::exchange(parameter.lora_target, "");
    parameter.adapted_linear.clear();
  }
}

FeedForwardCost cost_of(const MixtureOfExpertsSpec& mixture, int64_t hidden_size) {
  const int64_t E = mixture.num_experts, k = mixture.experts_per_token, D = hidden_size;
  const int64_t I = mixture.expert_size, S = mixture.shared.intermediate_size;
  const int64_t expert = 3 * I * D, shared = 3 * S * D;
  FeedForwardCost cost;
  cost.width = std::max(I, S);
  cost.min_chunk_rows = kMinExpertRows * ((E + k - 1) / k);
  // The backward recomputes gate and up, one expert at a time: at most all rows of the chunk, with
  // their inputs and gradients; if one matrix computes both, also interleaved. This memory exists
  // throughout, also beside the shared expert's, which has an output (if it has a gate) and
  // gradients of output and input. Scores and their gradients are in fp32, as is the sum of input
  // gradients with its summand: two bf16 elements each. The forward, in which the shared expert's
  // output waits for the experts, needs less.
  constexpr int64_t kFp32 = 2;
  cost.saved = 0;
  cost.choice_bytes = k * expert_number_bytes(E);
  cost.working = (mixture.stacked ? 6 : 4) * I +
                 std::max(3 * D, mixture.has_shared() ? 3 * S + 3 * D : 0) +
                 kFp32 * (2 * D + 4 * E);
  cost.exchanged = 6 * k * D;
  cost.grouped = grouped_cost(mixture, hidden_size);
  cost.matrices = {E * expert + shared, std::max(I, S) * D};
  cost.cast_at_once = expert + shared;
  cost.flops = flops_of_matrices(k * expert + shared + E * D);
  cost.idle_matrices = (E - k) * (expert + (mixture.bias ? 2 * I + D : 0));
  return cost;
}

std::string sizes_in(const MixtureOfExpertsSpec& mixture) {
  return fmt::format("{} experts of {}", mixture.num_experts, mixture.expert_size);
}

}  // namespace longspan
