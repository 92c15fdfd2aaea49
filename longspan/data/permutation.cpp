#include "longspan/data/permutation.h"

#include <numeric>
#include <utility>

namespace longspan {

namespace {

// SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014), since
// std::shuffle and standard distributions differ between library implementations.
class SplitMix64 {
 public:
  explicit SplitMix64(uint64_t state) : state_(state) {}

  uint64_t next() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15ull);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
  }

  /// Uniform in [0, bound). Rejects draws from the incomplete last interval.
  uint64_t below(uint64_t bound) {
    const uint64_t reject_below = (0 - bound) % bound;
    uint64_t draw = next();
    while (draw < reject_below) draw = next();
    return draw % bound;
  }

 private:
  uint64_t state_;
};

}  // namespace

std::vector<int64_t> seeded_permutation(int64_t size, int64_t seed, int64_t stream) {
  // Mixes seed and stream separately, so that (seed, stream) and (seed + 1, stream - 1) differ.
  SplitMix64 random(SplitMix64(static_cast<uint64_t>(seed)).next() +
                    SplitMix64(~static_cast<uint64_t>(stream)).next());
  std::vector<int64_t> order(size);
  std::iota(order.begin(), order.end(), 0);
  for (int64_t i = size - 1; i > 0; --i) std::swap(order[i], order[random.below(i + 1)]);
  return order;
}

}  // namespace longspan
