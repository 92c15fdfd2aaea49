#include "longspan/attention/call_plan.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <limits>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "longspan/attention/cudnn_attention.h"

namespace longspan {
namespace {

std::vector<Block> documents(const std::vector<int64_t>& lengths) {
  std::vector<Block> blocks;
  int64_t begin = 0;
  for (const int64_t length : lengths) {
    blocks.push_back({begin, length, begin, length, true});
    begin += length;
  }
  return blocks;
}

using Pairs = std::multiset<std::pair<int64_t, int64_t>>;

void add_pairs(const Block& block, Pairs& pairs) {
  for (int64_t i = 0; i < block.q_length; ++i) {
    const KeyRange keys = keys_of(block, i);
    for (int64_t key = keys.begin; key < keys.end; ++key) {
      pairs.emplace(block.q_begin + i, block.k_begin + key);
    }
  }
}

Pairs pairs_of_blocks(const std::vector<Block>& blocks) {
  Pairs pairs;
  for (const Block& block : blocks) add_pairs(block, pairs);
  return pairs;
}

/// Checks each segment's mask against that of its call, and returns the pairs of all calls.
Pairs pairs_of_calls(const std::vector<PlannedCall>& calls) {
  Pairs pairs;
  for (const PlannedCall& call : calls) {
    for (const Block& segment : call.segments) {
      CHECK(segment.causal == call.causal);
      if (call.causal) CHECK(segment.offset == segment.k_length - segment.q_length);
      if (call.window_left >= 0) {
        CHECK(segment.lower == segment.k_length - segment.q_length - call.window_left);
      } else {
        CHECK(!segment.lower);
      }
      add_pairs(segment, pairs);
    }
  }
  return pairs;
}

int64_t num_queries(const PlannedCall& call) {
  int64_t queries = 0;
  for (const Block& segment : call.segments) queries += segment.q_length;
  return queries;
}

TEST_CASE("call plan: long blocks are cuDNN's, and a short one changes nothing about that") {
  const std::vector<Block> blocks = documents({4096, 100, 2048, 2047});
  const BlocksByKernel by = by_kernel(blocks);
  REQUIRE(by.cudnn.size() == 2);
  CHECK(by.cudnn[0].q_length == 4096);
  CHECK(by.cudnn[1].q_length == 2048);
  REQUIRE(by.varlen.size() == 2);
  CHECK(by.varlen[0].q_length == 100);
  const auto is_cudnn = [](const Block& block) { return by_kernel({block}).cudnn.size() == 1; };
  CHECK(is_cudnn({0, 2304, 0, 4096, false}));
  CHECK_FALSE(is_cudnn({0, 2304, 0, 4100, false}));         // its keys would need a fill
  CHECK_FALSE(is_cudnn({0, 8192 + 256, 0, 4096, false}));   // one more length that needs a plan
  CHECK_FALSE(is_cudnn({0, 4096, 0, 4096, true, 0, -99}));  // a window
  CHECK_FALSE(is_cudnn({0, 4096, 0, 8192, true, 4096}));    // a mask that begins elsewhere
}

TEST_CASE("call plan: no block whose offsets may wrap in 32 bits goes to cuDNN") {
  // 32 heads of 128 numbers: 2^19 tokens have 2^31. Where a document begins does not count.
  const auto heads = [](int64_t tokens, int64_t token_stride) {
    return at::empty_strided({tokens, 32, 128}, {token_stride, 128, 1},
                             at::device(at::kMeta).dtype(at::kBFloat16));
  };
  constexpr int64_t kTokens = int64_t{1} << 19, kMost = kTokens - 1;
  CHECK(cudnn::most_tokens({heads(4 * kTokens, 4096)}) == kMost);
  CHECK(cudnn::most_tokens({heads(4, 4096), heads(4, 3 * 4096)}) == kMost / 3);
  const int64_t whole = kMost / 1024 * 1024;  // filled up to a multiple of 1024
  const std::vector<Block> blocks = documents({whole, whole + 1, 4096});
  const BlocksByKernel by = by_kernel(blocks, kMost);
  REQUIRE(by.cudnn.size() == 2);
  CHECK(by.cudnn[1].q_begin == 2 * whole + 1);
  REQUIRE(by.varlen.size() == 1);
  CHECK(by.varlen[0].q_length == whole + 1);
  CHECK(by_kernel({{0, 4096, 0, whole + 1024, false}}, kMost).cudnn.empty());
}

TEST_CASE("call plan: offsets into FlashAttention 3's accumulators have 32 bits") {
  constexpr int64_t kRows = std::numeric_limits<int32_t>::max() / 256;
  CHECK(fit_flash3_accumulators(documents({kRows - 256})));
  CHECK_FALSE(fit_flash3_accumulators(documents({kRows - 255})));
  // Each segment is padded, and queries and keys count apart.
  CHECK(fit_flash3_accumulators(documents({1024, kRows - 1024 - 384})));
  CHECK_FALSE(fit_flash3_accumulators(documents({1024, kRows - 1024 - 383})));
  CHECK_FALSE(fit_flash3_accumulators({{0, 1024, 0, kRows, false}}));
}

TEST_CASE("call plan: the fill is at most an eighth of a block") {
  CHECK(cudnn_length(2049) == 2304);
  CHECK(cudnn_length(2304) == 2304);
  CHECK(cudnn_length(8192) == 8192);
  CHECK(cudnn_length(8193) == 9216);
  for (int64_t length = kLeastForCudnn; length < 40'000; length += 7) {
    CHECK(cudnn_length(length) >= length);
    CHECK(8 * (cudnn_length(length) - length) < length);
  }
}

TEST_CASE("call plan: calls within limits see the pairs of their blocks, each once") {
  // 4 MiB of accumulators a row: parts of 384 queries.
  const FlashAccumulators accumulators{.num_heads = 8192, .head_dim = 128};
  REQUIRE(accumulators.most_queries() == 384);
  const std::vector<std::vector<Block>> cases{
      documents({1000, 1, 200, 700, 385}),
      {{0, 900, 0, 1100, true, 200}},
      {{0, 900, 0, 700, true, 20}},
      {{0, 900, 0, 300, false}},
      {{0, 900, 0, 900, true, 0, -99}, {900, 500, 850, 500, false, 0, -20}},
      {{0, 900, 0, 950, true, 100, 7}, {900, 400, 0, 400, true, 0, -500}},
      {{0, 0, 0, 5, false}, {0, 5, 5, 0, false}}};
  for (const std::vector<Block>& blocks : cases) {
    for (const bool has_full_grid : {false, true}) {
      for (const int64_t most : {int64_t{2}, CallLimits{}.num_segments}) {
        const CallLimits limits{most, has_full_grid, accumulators};
        const std::vector<PlannedCall> calls = plan_calls(blocks, limits);
        CHECK(pairs_of_calls(calls) == pairs_of_blocks(blocks));
        for (const PlannedCall& call : calls) {
          CHECK(!call.segments.empty());
          CHECK(std::ssize(call.segments) <= most);
          CHECK(accumulators.bytes(num_queries(call), std::ssize(call.segments)) <=
                FlashAccumulators::kMostBytes);
        }
      }
    }
  }
}

TEST_CASE("call plan: no segment begins where FlashAttention 2's offset wraps") {
  const FlashAccumulators accumulators{.num_heads = 32, .head_dim = 128};
  const auto last_offset = [&](const PlannedCall& call) {
    const int64_t begin = num_queries(call) - call.segments.back().q_length;
    const int64_t beside = FlashAccumulators::kRowsBeside * std::ssize(call.segments);
    return (begin + beside) * accumulators.num_heads * accumulators.padded_dim();
  };
  constexpr int64_t kWraps = int64_t{1} << 31;
  const std::vector<Block> blocks = documents({400'000, 124'288, 1000, 300'000, 300'000});
  REQUIRE(last_offset(plan_calls(blocks, {})[0]) >= kWraps);
  int64_t queries = 0;
  for (const PlannedCall& call : plan_calls(blocks, {.accumulators = accumulators})) {
    CHECK(last_offset(call) < kWraps);
    queries += num_queries(call);
  }
  CHECK(queries == 1'125'288);
}

TEST_CASE("call plan: accumulators for the same bits each time take no more than others") {
  // One document of a million tokens: five accumulators a row on 132 multiprocessors, 80 GiB.
  const FlashAccumulators accumulators{
      .num_heads = 32, .head_dim = 128, .num_multiprocessors = 132};
  const int64_t tokens = int64_t{1} << 20;
  CHECK(accumulators.bytes(tokens, 1) / 5 == (tokens + 128) * 32 * 128 * 4);
  const std::vector<PlannedCall> calls =
      plan_calls(documents({tokens}), {.accumulators = accumulators});
  int64_t begin = 0;
  for (const PlannedCall& call : calls) {
    REQUIRE(call.segments.size() == 1);
    const Block& part = call.segments[0];
    CHECK(accumulators.bytes(part.q_length, 1) <= FlashAccumulators::kMostBytes);
    CHECK(part.q_begin == begin);
    begin += part.q_length;
    CHECK(part.k_length == begin);
  }
  CHECK(begin == tokens);
  CHECK(calls.size() == 41);
  // Documents that fill the GPU have one accumulator. Documents of 16 tokens have 128 rows more.
  CHECK(accumulators.bytes(50'000, 5) == (50'000 + 5 * 128) * 32 * 128 * 4);
  const std::vector<Block> short_ones = documents(std::vector<int64_t>(4096, 16));
  CHECK(plan_calls(short_ones, {}).size() == 1);
  CHECK(plan_calls(short_ones, {.accumulators = accumulators}).size() == 5);
}

TEST_CASE("call plan: a grid has at most 65,535 segments, where the caller says so") {
  const std::vector<PlannedCall> calls =
      plan_calls(documents(std::vector<int64_t>(140'000, 1)), {.num_segments = 65'535});
  REQUIRE(calls.size() == 3);
  CHECK(calls[0].segments.size() == 65'535);
  CHECK(calls[2].segments.size() == 140'000 - 2 * 65'535);
  CHECK(calls[2].segments.front().q_begin == 2 * 65'535);
}

TEST_CASE("call plan: segments of similar lengths share a call") {
  const auto empty_tiles = [](const PlannedCall& call) {
    int64_t longest = 0, used = 0;
    for (const Block& segment : call.segments) {
      const int64_t tiles = (segment.q_length + 127) / 128;
      longest = std::max(longest, tiles);
      used += tiles;
    }
    return std::pair(longest * std::ssize(call.segments) - used,
                     longest * std::ssize(call.segments));
  };
  // A document among many short ones: its grid alone would have 250 tiles for each of them.
  std::vector<int64_t> lengths(1000, 32);
  lengths.insert(lengths.begin() + 500, 32'000);
  const std::vector<PlannedCall> calls = plan_calls(documents(lengths), {.has_full_grid = true});
  CHECK(calls.size() == 2);
  for (const PlannedCall& call : calls) {
    const auto [empty, all] = empty_tiles(call);
    CHECK(empty <= std::max<int64_t>(512, all / 2));
  }
  CHECK(has_several_calls(documents(lengths)));
  // Rows as packing makes them stay whole and in order: a call has all tokens in place.
  const std::vector<int64_t> packed{700, 30, 1500, 200, 200, 1000, 466};
  const std::vector<PlannedCall> one = plan_calls(documents(packed), {.has_full_grid = true});
  REQUIRE(one.size() == 1);
  for (size_t i = 0; i < packed.size(); ++i) CHECK(one[0].segments[i].q_length == packed[i]);
  CHECK_FALSE(has_several_calls(documents(packed)));
  CHECK_FALSE(has_several_calls(documents({30'000})));
  // Equally many queries, which see many keys and few: the backward's grid is over keys.
  std::vector<Block> prompts{{60'000, 100, 0, 60'000, false}};
  for (int64_t i = 1; i <= 10; ++i) prompts.push_back({60'000 + 100 * i, 100, 0, 100, false});
  CHECK(plan_calls(prompts, {}).size() == 1);
  CHECK(plan_calls(prompts, {.has_full_grid = true}).size() == 2);
}

}  // namespace
}  // namespace longspan
