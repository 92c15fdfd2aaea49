// Checks of rollouts, from files and from servers. No torch.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "longspan/rollouts/rollout.h"

namespace longspan {

/// Returns the rollout's name in messages: Rollout::source, or, without a source, its id or group.
std::string place_of(const Rollout& rollout);

/// Throws RowError, with the rollout's place, unless: there are tokens; ids are from 0 to
/// `vocab_size` - 1; vectors with one element per token have the length of token_ids; a token is
/// trained, and no trained token is the first token of a conversation, which nothing predicts;
/// log-probabilities are finite and at most 0; rewards and advantages are finite; the policy's
/// version is not negative.
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
