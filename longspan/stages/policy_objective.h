// The objective of stage grpo: rollouts with rewards.
#pragma once

#include <memory>

#include "longspan/stages/objective.h"

namespace longspan {

/// Rewards become advantages, per group or with statistics of the whole batch; the loss is
/// policy_terms() (objectives/policy.h).
std::unique_ptr<Objective> make_policy_objective(const ObjectiveContext& context);

}  // namespace longspan
