#include "longspan/spec/gated_delta_net_spec.h"

#include <algorithm>

namespace longspan {

void list_parameters(const GatedDeltaNetSpec& mixer, LayerParameters& list) {
  const char* const module = "linear_attn";
  const int64_t D = list.hidden_size(), N = mixer.num_value_heads;
  list.bias_of_ones(module, "linear_attn.dt_bias", N);
  list.log_decay(module, "linear_attn.A_log", N);
  list.convolution(module, "linear_attn.conv1d.weight", mixer.num_channels(), mixer.conv_width);
  list.norm_of_kind(module, "linear_attn.norm", mixer.value_dim, NormKind::kWeight);
  list.linear(module, "out_proj", D, mixer.num_values(), /*bias=*/false);
  switch (mixer.projections) {
    case GatedDeltaNetSpec::Projections::kApart:
      list.linear(module, "in_proj_qkv", mixer.num_channels(), D, /*bias=*/false);
      list.linear(module, "in_proj_z", mixer.num_values(), D, /*bias=*/false);
      list.linear(module, "in_proj_b", N, D, /*bias=*/false);
      list.linear(module, "in_proj_a", N, D, /*bias=*/false);
      break;
    case GatedDeltaNetSpec::Projections::kByKeyHeads:
      list.linear(module, "in_proj_qkvz", mixer.num_channels() + mixer.num_values(), D,
                  /*bias=*/false);
      list.linear(module, "in_proj_ba", 2 * N, D, /*bias=*/false);
      break;
  }
}

TokenMixerCost cost_of(const GatedDeltaNetSpec& mixer, int64_t hidden_size) {
  const int64_t values = mixer.num_values(), N = mixer.num_value_heads;
  TokenMixerCost cost;
  cost.queries = mixer.num_channels();
  cost.values = values + 2 * N;  // z, and the inputs of the gates
  cost.output = values;
  // Outputs of the convolution and of the rule, before the norm.
  cost.saved_for_gate = mixer.num_channels() + values;
  // Gates in fp32 and fp64, the norm's sums, and a state per segment.
  cost.state_bytes = 36 * N + 4 * N * mixer.key_dim * mixer.value_dim / kRuleSegment;
  cost.is_computed_again = true;
  const RecurrenceSpec recurrence = *recurrence_in(mixer);
  const FlopCost rule = rule_flops_of(recurrence, mixer.value_dim),
                 convolution = flops_of_matrices(mixer.conv_width * mixer.num_channels());
  cost.recurrence_flops = {N * rule.forward + convolution.forward,
                           N * rule.backward + convolution.backward};
  const int64_t before = mixer.num_channels() + values + 2 * N;
  cost.before = {before * hidden_size, mixer.num_channels() * hidden_size};
  cost.after = {values * hidden_size, values * hidden_size};
  cost.projection_flops = flops_of_matrices(cost.before.numbers + cost.after.numbers);
  return cost;
}

}  // namespace longspan
