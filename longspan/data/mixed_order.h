// The order of the rows of several data sets: mix_strategy, interleave_probs. No torch.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "longspan/settings/choices.h"

namespace longspan {

/// Returns the numbers in interleave_probs, scaled to sum 1; empty if the key is not set. Throws
/// UserError unless there is one for each of `num_sets` data sets, all at least 0 with a sum of 1,
/// above 0 if every row is wanted.
std::vector<double> interleave_probs_of(const DataSettings& config, int64_t num_sets);

/// Returns the order in which rows are taken from data sets that lie one after the other, as places
/// in all of them. `sizes`: rows of each, at least 1. The orders are those of Hugging Face's
/// datasets.interleave_datasets, also with `probabilities`, which may be empty. Throws UserError if
/// rare draws would make it endless.
std::vector<int64_t> mixed_order(MixStrategy strategy, const std::vector<int64_t>& sizes,
                                 const std::vector<double>& probabilities, int64_t seed);

}  // namespace longspan
