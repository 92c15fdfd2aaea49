#include "longspan/spec/expert_casts.h"

#include "longspan/spec/mixture_of_experts_spec.h"

namespace longspan {

ExpertCasts expert_casts(const MixtureOfExpertsSpec& mixture, int64_t hidden_size) {
  const int64_t E = mixture.num_experts, k = mixture.experts_per_token, I = mixture.expert_size;
  return {.num_tokens = (kCastExpertRows * E + k - 1) / k,
          .num_experts = E,
          .matrices = 3 * I * hidden_size,
          .adapters = 3 * I + (mixture.stacked ? 2 : 3) * hidden_size};
}

}  // namespace longspan
