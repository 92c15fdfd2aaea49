// Models with experts, and rows, for the tests of expert parallelism.
#pragma once

#include <vector>

#include "longspan/testing/plain_model.h"

namespace longspan::testing {

/// Twelve experts in two of three layers. One router has a softmax, the other a sigmoid. The bias
/// of the sigmoid router keeps all tokens away from the last three experts, so that the last of
/// four ranks gets no rows.
inline ModelSpec shared_out_model() {
  ModelSpec spec = small_model(/*tied=*/false, /*biases=*/false);
  SelfAttentionSpec attention;
  attention.attention = plain_attention(2, 1, 4);
  MixtureOfExpertsSpec softmax{
      .num_experts = 12, .experts_per_token = 2, .expert_size = 8, .router = {}, .shared = {}};
  softmax.router.normalises = true;
  MixtureOfExpertsSpec sigmoid = softmax;
  sigmoid.experts_per_token = 3;
  sigmoid.router.scores = RouterSpec::Scores::kSigmoid;
  sigmoid.router.has_correction_bias = true;
  sigmoid.router.scale = 1.5;
  sigmoid.shared = {.intermediate_size = 10, .name = "shared_expert", .is_gated = true};
  spec.num_layers = 3;
  spec.pattern = {{attention, softmax},
                  {attention, GatedMlpSpec{.intermediate_size = 16}},
                  {attention, sigmoid}};
  return spec;
}

/// Returns the model's parameters as new leaves, with the same values at each call.
inline std::vector<NamedTensor> shared_out_leaves(const ModelSpec& spec) {
  std::vector<NamedTensor> leaves = random_leaves(spec);
  for (const ParameterSpec& parameter : parameters_of(spec)) {
    for (NamedTensor& leaf : leaves) {
      if (leaf.name != parameter.name || !is_buffer(parameter.role)) continue;
      leaf.tensor.narrow(0, 9, 3).fill_(-100.0);
    }
  }
  return leaves;
}

/// Returns one rank's batch; lengths differ between ranks. Rank 1 has a single token without a
/// label.
inline Batch batch_of_rank(const ModelSpec& spec, int rank) {
  if (rank == 1) return random_batch(spec, {1}, 0.0);
  Batch batch = random_batch(spec, {9, 1, 5 + 3 * rank}, 0.5);
  batch.tokens_T = (batch.tokens_T + 7 * rank).remainder(spec.vocab_size);
  return batch;
}

}  // namespace longspan::testing
