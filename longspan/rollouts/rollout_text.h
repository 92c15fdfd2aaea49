// Rollouts that are given as texts. No torch.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "longspan/rollouts/rollout.h"
#include "longspan/rollouts/rollout_line.h"

namespace longspan {

/// Sets the tokens and the mask of a rollout from the row's `prompt` or `messages` (a question, or
/// messages that end with one), `completion` and `tools`, by the encoder of `rules`. The completion
/// and the token that ends an answer are trained. If the rollout is truncated, the token that ends
/// an answer is left out, because the policy has not sampled it. Throws UserError that begins with
/// Rollout::source.
void encode_text_rollout(const nlohmann::ordered_json& row, const RolloutRules& rules,
                         Rollout& rollout);

}  // namespace longspan
