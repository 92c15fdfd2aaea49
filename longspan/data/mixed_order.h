// The order of the rows of several data sets: mix_strategy, interleave_probs. No torch.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "longspan/settings/choices.h"

namespace longspan {

/// Returns the numbers in interleave_probs, scaled to sum 1; empty if the key is not set. Throws
/// UserError unless there is one for each of `num_sets` data sets, all at least 0 with a sum of 1,
/// above 0 if every row is wanted.
std::vector<double> interleave_probs_of(const DataSettings& config, int64_t num_sets);

/// Returns a function that gives the number of the data set of each row in turn: one after the
/// other, or drawn with `probabilities`, unless they are empty.
std::function<size_t()> order_of_sets(size_t num_sets, const std::vector<double>& probabilities,
                                      int64_t seed);

/// Throws UserError after too many draws, since rare draws would make a mixture endless.
void require_few_draws(int64_t draws);

/// Returns the order in which rows are taken from data sets that lie one after the other, as places
/// in all of them. `sizes`: rows of each, at least 1. The orders are those of Hugging Face's
/// datasets.interleave_datasets, also with `probabilities`, which may be empty. Throws UserError if
/// rare draws would make it endless.
std::vector<int64_t> mixed_order(MixStrategy strategy, const std::vector<int64_t>& sizes,
                                 const std::vector<double>& probabilities, int64_t seed);

}  // namespace longspan
