// The objective of rollouts with rewards, or with a teacher's log-probabilities.
#pragma once

#include <memory>

#include "longspan/stages/objective.h"

namespace longspan {

/// Rewards become advantages, per group or with statistics of the whole batch; the loss is
/// policy_terms() (objectives/policy.h).
std::unique_ptr<Objective> make_policy_objective(const ObjectiveContext& context);

/// The advantage of a token is log p of the teacher (column kTeacherLogprobs) minus log p of the
/// policy before the first update on the batch. The loss is that of loss_type dapo. At the first
/// update, the loss's gradient is an estimate of the gradient of KL(policy || teacher), the mean
/// over the tokens of the policy's own rollouts (on-policy distillation).
std::unique_ptr<Objective> make_sampled_distillation(const ObjectiveContext& context);

}  // namespace longspan
