#include "longspan/data/mixed_order.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cmath>
#include <numeric>

#include "longspan/base/names.h"
#include "longspan/base/user_error.h"
#include "longspan/text/counted.h"

namespace longspan {

namespace {

constexpr int64_t kMostDraws = 100'000'000;

__extension__ using Wide = unsigned __int128;

/// numpy.random.default_rng(seed): O'Neill's PCG-XSL-RR-128/64, seeded by numpy's SeedSequence.
class NumpyRandom {
 public:
  explicit NumpyRandom(uint64_t seed) {
    std::array<uint32_t, 4> pool{static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)};
    uint32_t hash = 0x43b0d7e5;
    const auto hashed = [&hash](uint32_t value) {
      value ^= hash;
      hash *= 0x931e8875;
      value *= hash;
      return value ^ (value >> 16);
    };
    for (uint32_t& word : pool) word = hashed(word);
    for (size_t from = 0; from < pool.size(); ++from) {
      for (size_t to = 0; to < pool.size(); ++to) {
        if (from == to) continue;
        const uint32_t mixed = 0xca01f9dd * pool[to] - 0x4973f715 * hashed(pool[from]);
        pool[to] = mixed ^ (mixed >> 16);
      }
    }
    std::array<uint64_t, 4> words{};
    hash = 0x8b51f9dd;
    for (size_t i = 0; i < 8; ++i) {
      uint32_t value = pool[i % pool.size()] ^ hash;
      hash *= 0x58f38ded;
      value *= hash;
      value ^= value >> 16;
      words[i / 2] |= static_cast<uint64_t>(value) << (i % 2 * 32);
    }
    increment_ = ((Wide{words[2]} << 64 | words[3]) << 1) | 1;
    step();
    state_ += Wide{words[0]} << 64 | words[1];
    step();
  }

  /// Uniform in [0, 1).
  double next() {
    step();
    const auto folded = static_cast<uint64_t>(state_ >> 64) ^ static_cast<uint64_t>(state_);
    const auto turn = static_cast<int>(state_ >> 122);
    return static_cast<double>(std::rotr(folded, turn) >> 11) * 0x1p-53;
  }

 private:
  void step() {
    constexpr Wide kFactor = Wide{0x2360ED051FC65DA4} << 64 | 0x4385DF649FCCF645;
    state_ = state_ * kFactor + increment_;
  }

  Wide state_ = 0, increment_ = 0;
};

/// Gives the number of a data set at a time: in turn, or drawn by probabilities.
class Sources {
 public:
  Sources(size_t count, const std::vector<double>& probabilities, int64_t seed)
      : count_(count), sums_(probabilities.size()), random_(static_cast<uint64_t>(seed)) {
    std::partial_sum(probabilities.begin(), probabilities.end(), sums_.begin());
    for (double& sum : sums_) sum /= sums_.back();
  }

  size_t next() {
    if (sums_.empty()) return turn_++ % count_;
    return std::ranges::upper_bound(sums_, random_.next()) - sums_.begin();
  }

 private:
  size_t count_, turn_ = 0;
  std::vector<double> sums_;
  NumpyRandom random_;
};

}  // namespace

std::vector<double> interleave_probs_of(const DataSettings& config, int64_t num_sets) {
  std::vector<double> probabilities;
  for (const std::string& text : split_names(config.interleave_probs)) {
    double number = 0;
    const char *const begin = text.data(), *const end = begin + text.size();
    const std::from_chars_result read = std::from_chars(begin, end, number);
    if (read.ec != std::errc() || read.ptr != end || !(number >= 0) || !std::isfinite(number)) {
      throw UserError(
          fmt::format("interleave_probs: {} was given; wanted are numbers from 0 to 1, with commas "
                      "between",
                      text));
    }
    probabilities.push_back(number);
  }
  if (probabilities.empty()) return {};
  if (std::ssize(probabilities) != num_sets) {
    throw UserError(fmt::format("interleave_probs: {} for {}; give one for each",
                                counted(std::ssize(probabilities), "number"),
                                counted(num_sets, "data set")));
  }
  const double sum = std::accumulate(probabilities.begin(), probabilities.end(), 0.0);
  if (std::abs(sum - 1) > std::sqrt(0x1p-52)) {  // numpy's tolerance
    throw UserError(fmt::format("interleave_probs: the sum is {:.6g}; wanted is 1", sum));
  }
  if (mix_strategy_of(config) != MixStrategy::kInterleaveUnder &&
      std::ranges::find(probabilities, 0.0) != probabilities.end()) {
    throw UserError(
        fmt::format("interleave_probs: with mix_strategy: {} every row is taken, but a data set "
                    "has probability 0; remove that data set",
                    config.mix_strategy));
  }
  return probabilities;
}

std::function<size_t()> order_of_sets(size_t num_sets, const std::vector<double>& probabilities,
                                      int64_t seed) {
  return [sources = Sources(num_sets, probabilities, seed)]() mutable { return sources.next(); };
}

void require_few_draws(int64_t draws) {
  if (draws < kMostDraws) return;
  throw UserError(
      fmt::format("interleave_probs: a data set with a small probability is not exhausted after "
                  "{} draws; give it a larger one, or set mix_strategy: interleave_under",
                  kMostDraws));
}

std::vector<int64_t> mixed_order(MixStrategy strategy, const std::vector<int64_t>& sizes,
                                 const std::vector<double>& probabilities, int64_t seed) {
  std::vector<int64_t> begins(sizes.size()), taken(sizes.size());
  std::exclusive_scan(sizes.begin(), sizes.end(), begins.begin(), int64_t{0});
  const int64_t num_rows = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
  std::vector<int64_t> order;
  if (strategy == MixStrategy::kConcat) {
    order.resize(static_cast<size_t>(num_rows));
    std::iota(order.begin(), order.end(), int64_t{0});
    return order;
  }
  const bool is_once = strategy == MixStrategy::kInterleaveOnce;
  const bool ends_with_first = strategy == MixStrategy::kInterleaveUnder;
  Sources sources(sizes.size(), probabilities, seed);
  size_t num_exhausted = 0;
  for (int64_t draws = 0;; ++draws) {
    require_few_draws(draws);
    const size_t source = sources.next();
    const int64_t size = sizes[source];
    if (!is_once || taken[source] < size) {
      order.push_back(begins[source] + taken[source] % size);
      if (++taken[source] == size) ++num_exhausted;
    }
    // In turn, each round of all data sets is completed.
    const bool ends_round = !probabilities.empty() || source + 1 == sizes.size();
    const bool ends = ends_with_first ? num_exhausted > 0 : num_exhausted == sizes.size();
    if (ends && ends_round) return order;
  }
}

}  // namespace longspan
