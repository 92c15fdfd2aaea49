#include "longspan/attention/call_plan.h"

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <stdexcept>
#include <utility>

namespace longspan {
namespace {

constexpr int64_t kFineMultiple = 256, kCoarseMultiple = 1024, kFineBelow = 8192;

bool suits_cudnn(const Block& block, int64_t most_tokens) {
  if (block.lower || std::min(block.q_length, block.k_length) < kLeastForCudnn) return false;
  if (cudnn_length(std::max(block.q_length, block.k_length)) > most_tokens) return false;
  // cuDNN's causal mask begins in the upper left corner. No query sees the fill behind the keys.
  if (block.causal) return block.offset == 0 && block.q_length == block.k_length;
  return cudnn_length(block.q_length) == block.q_length &&
         cudnn_length(block.k_length) == block.k_length;
}

/// Tiles of a grid that is as long as its longest segment, for each segment.
struct Grid {
  int64_t longest = 0, used = 0, num_segments = 0;

  Grid with(int64_t length) const {
    constexpr int64_t kTile = 128;
    const int64_t tiles = (length + kTile - 1) / kTile;
    return {std::max(longest, tiles), used + tiles, num_segments + 1};
  }
  /// Whether the empty tiles cost less than a further call: they are few, or at most half of all.
  bool is_full_enough() const {
    constexpr int64_t kMostEmpty = 512;
    const int64_t all = longest * num_segments;
    return all - used <= std::max(kMostEmpty, all / 2);
  }
};

/// Segments that share a call. The forward's grid is over queries, the backward's over keys.
struct Bucket {
  Grid queries, keys;
  std::vector<size_t> segments;

  bool take(const Block& block, size_t index) {
    const Grid q = queries.with(block.q_length), k = keys.with(block.k_length);
    if (!segments.empty() && !(q.is_full_enough() && k.is_full_enough())) return false;
    queries = q;
    keys = k;
    segments.push_back(index);
    return true;
  }
};

/// Returns buckets of similar lengths. Each bucket is in the order of `segments`.
std::vector<std::vector<Block>> by_length(const std::vector<Block>& segments) {
  std::vector<size_t> order(segments.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, std::greater{}, [&](size_t i) {
    return std::max(segments[i].q_length, segments[i].k_length);
  });
  std::vector<Bucket> buckets;
  for (const size_t i : order) {
    if (!std::ranges::any_of(buckets,
                             [&](Bucket& bucket) { return bucket.take(segments[i], i); })) {
      buckets.emplace_back().take(segments[i], i);
    }
  }
  std::vector<std::vector<Block>> result;
  for (Bucket& bucket : buckets) {
    std::ranges::sort(bucket.segments);
    std::vector<Block>& blocks = result.emplace_back();
    for (const size_t i : bucket.segments) blocks.push_back(segments[i]);
  }
  return result;
}

using Kind = std::pair<bool, int64_t>;  // causal, window_left

/// The kind of a trimmed block, whose last query sees a key: its window does not end before it.
Kind kind_of(const Block& block) {
  // Query i is aligned with key i + k_length - q_length.
  const int64_t left = block.lower ? block.k_length - block.q_length - *block.lower : -1;
  if (block.lower && left < 0) {
    throw std::logic_error("attention: a window that ends before its queries");
  }
  return {block.causal, left};
}

/// Returns queries [begin, begin + length) of a block whose causal mask is aligned at the end, with
/// the keys that they see.
Block part_of(const Block& block, int64_t begin, int64_t length) {
  Block part = block;
  part.q_begin += begin;
  part.q_length = length;
  if (part.causal) {
    part.offset += begin;
    part.k_length = part.offset + length;
  }
  if (part.lower) {
    *part.lower += begin;
    part = trimmed(part);
  }
  return part;
}

/// The calls of segments of one kind, in order.
class CallBuilder {
 public:
  CallBuilder(Kind kind, const CallLimits& limits, std::vector<PlannedCall>& calls)
      : kind_(kind), limits_(limits), calls_(calls) {}

  void add(const Block& segment) {
    if (!fits(segment.q_length, 1)) return add_in_parts(segment);
    const auto count = is_open_ ? std::ssize(calls_.back().segments) : 0;
    if (!is_open_ || !fits(num_queries_ + segment.q_length, count + 1)) {
      calls_.push_back({kind_.first, kind_.second, {}});
      is_open_ = true;
      num_queries_ = 0;
    }
    calls_.back().segments.push_back(segment);
    num_queries_ += segment.q_length;
  }

 private:
  bool fits(int64_t num_queries, int64_t num_segments) const {
    return num_segments <= limits_.num_segments &&
           (!limits_.accumulators || limits_.accumulators->bytes(num_queries, num_segments) <=
                                         FlashAccumulators::kMostBytes);
  }

  void add_in_parts(const Block& segment) {
    is_open_ = false;
    const int64_t most = limits_.accumulators->most_queries();
    for (int64_t begin = 0; begin < segment.q_length; begin += most) {
      const Block part = part_of(segment, begin, std::min(most, segment.q_length - begin));
      if (part.q_length == 0 || part.k_length == 0) continue;
      const auto [causal, left] = kind_of(part);
      calls_.push_back({causal, left, {part}});
    }
  }

  Kind kind_;
  const CallLimits& limits_;
  std::vector<PlannedCall>& calls_;
  bool is_open_ = false;     // the last call takes further segments
  int64_t num_queries_ = 0;  // of the last call
};

}  // namespace

int64_t cudnn_length(int64_t length) {
  const int64_t multiple = length <= kFineBelow ? kFineMultiple : kCoarseMultiple;
  return (length + multiple - 1) / multiple * multiple;
}

BlocksByKernel by_kernel(const std::vector<Block>& blocks, int64_t most_tokens) {
  BlocksByKernel result;
  for (const Block& block : blocks) {
    (suits_cudnn(block, most_tokens) ? result.cudnn : result.varlen).push_back(block);
  }
  return result;
}

bool fit_flash3_accumulators(const std::vector<Block>& blocks) {
  constexpr int64_t kRowsBeside = 128;   // no tile is longer
  constexpr int64_t kMostHeadDim = 256;  // packages may be built without smaller ones
  int64_t num_queries = kRowsBeside, num_keys = kRowsBeside;
  for (const Block& block : blocks) {
    num_queries += block.q_length + kRowsBeside;
    num_keys += block.k_length + kRowsBeside;
  }
  return std::max(num_queries, num_keys) <= std::numeric_limits<int32_t>::max() / kMostHeadDim;
}

bool has_several_calls(const std::vector<Block>& blocks) {
  const BlocksByKernel by = by_kernel(blocks);
  return by.cudnn.size() > 1 || (!by.cudnn.empty() && !by.varlen.empty()) ||
         plan_calls(by.varlen, {.has_full_grid = true}).size() > 1;
}

std::vector<PlannedCall> plan_calls(const std::vector<Block>& blocks, const CallLimits& limits) {
  std::map<Kind, std::vector<Block>, std::greater<>> by_kind;
  for (const Block& whole : aligned_at_end(blocks)) {
    const Block block = whole.lower ? trimmed(whole) : whole;
    if (block.q_length == 0 || block.k_length == 0) continue;
    by_kind[kind_of(block)].push_back(block);
  }
  std::vector<PlannedCall> planned;
  for (const auto& [kind, segments] : by_kind) {
    using Buckets = std::vector<std::vector<Block>>;
    const Buckets buckets = limits.has_full_grid ? by_length(segments) : Buckets{segments};
    for (const std::vector<Block>& bucket : buckets) {
      CallBuilder builder(kind, limits, planned);
      for (const Block& segment : bucket) builder.add(segment);
    }
  }
  return planned;
}

}  // namespace longspan
