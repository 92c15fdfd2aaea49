// Seeded shuffles that are the same on every machine and with every standard library. No torch.
#pragma once

#include <cstdint>
#include <vector>

namespace longspan {

/// Returns 0 .. size-1 in an order that depends only on seed and stream. Streams of one seed (a
/// run's epochs, the evaluation split, ...) are independent.
std::vector<int64_t> seeded_permutation(int64_t size, int64_t seed, int64_t stream);

}  // namespace longspan
