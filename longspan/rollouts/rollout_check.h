// Checks of rollouts, from files and from servers. No torch.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "longspan/rollouts/rollout.h"

namespace longspan {

/// Returns the rollout's name in messages: Rollout::source, or, without a source, its id or group.
std::string place_of(const Rollout& rollout);

/// Throws RowError, with the rollout's place, in these cases: the rollout has no tokens; an id is
/// not in [0, `vocab_size`); a vector with one element per token has another length than token_ids;
/// no token is trained, or the first token of a conversation is trained, which nothing predicts; a
/// log-probability is not finite or above 0; a reward or an advantage is not finite; the policy's
/// version is negative.
void check_rollout(const Rollout& rollout, int64_t vocab_size);

/// Returns the problem of each rollout's links, with the rollout's place; "" for a good rollout.
/// Problems: an id that an earlier rollout has; a parent that is unknown, in another group, in a
/// cycle, or that has a problem itself.
std::vector<std::string> link_problems(const std::vector<Rollout>& rollouts);

/// Throws RowError with the first problem of link_problems().
void check_links(const std::vector<Rollout>& rollouts);

/// Returns the index of each rollout's parent; -1: none. The links must be good.
std::vector<int64_t> parents_of(const std::vector<Rollout>& rollouts);

/// Returns the number of trained tokens.
int64_t num_trained(const Rollout& rollout);

}  // namespace longspan
