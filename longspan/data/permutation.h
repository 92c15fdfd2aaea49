// Seeded shuffles that are the same on every machine and with every standard library. No torch.
#pragma once

#include <cstdint>
#include <vector>

namespace longspan {

/// 0 .. size-1 in an order that depends on seed and stream alone. Streams of one seed (the epochs
/// of a run, the evaluation split, ...) are independent of each other.
std::vector<int64_t> seeded_permutation(int64_t size, int64_t seed, int64_t stream);

}  // namespace longspan
