// N: query heads, M: kv heads, P: ranks, T: tokens.
#include "longspan/plan/geometry.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <vector>

namespace longspan {
namespace {

struct Shape {
  int64_t num_heads, num_kv_heads;
};
constexpr Shape kShapes[] = {{8, 8}, {8, 2}, {8, 1}, {14, 2}, {28, 4}, {12, 2}, {40, 8}, {6, 6}};

int64_t document_begin(const Packing& packing, int64_t token) {
  int64_t document = 0;
  while (packing.end(document) <= token) ++document;
  return packing.begin(document);
}

/// Checks that every query appears once, with its own kv head's keys, and that no key reaches a
/// rank twice.
void check_complete(const HeadSplit& split, int64_t num_heads, int64_t group, int64_t last_kv,
                    const Packing& packing) {
  const int64_t T = packing.num_tokens();
  std::vector<int> times(num_heads * T, 0);
  for (const RankShare& share : split) {
    std::vector<std::vector<bool>> has(last_kv + 1, std::vector<bool>(T, false));
    for (const HeadBlock& item : share.kv_items) {
      for (int64_t kv = item.head_begin; kv < item.head_begin + item.num_heads; ++kv) {
        for (int64_t i = item.token_begin; i < item.token_begin + item.num_tokens; ++i) {
          REQUIRE_FALSE(has[kv][i]);
          has[kv][i] = true;
        }
      }
    }
    std::vector<bool> held(share.kv_items.size(), false);
    for (const HeadWave& wave : share.waves) {
      REQUIRE_FALSE(wave.pieces.empty());
      for (int item : wave.fetched) held[item] = true;
      for (const AttentionPiece& piece : wave.pieces) {
        const HeadBlock& query = piece.query;
        const HeadBlock& item = share.kv_items[piece.kv_item];
        REQUIRE(held[piece.kv_item]);
        REQUIRE(piece.kv_begin + piece.num_kv <= item.num_heads);
        REQUIRE(query.num_heads % piece.num_kv == 0);
        for (int64_t i = 0; i < query.num_heads; ++i) {
          const int64_t head = query.head_begin + i;
          const int64_t kv =
              item.head_begin + piece.kv_begin + i / (query.num_heads / piece.num_kv);
          REQUIRE(kv == std::min(head / group, last_kv));
          for (int64_t t = query.token_begin; t < query.token_begin + query.num_tokens; ++t) {
            times[head * T + t] += 1;
            REQUIRE(item.token_begin <= document_begin(packing, t));
            REQUIRE(item.token_begin + item.num_tokens > t);
          }
        }
      }
      for (int item : wave.released) held[item] = false;
    }
    CHECK(std::none_of(held.begin(), held.end(), [](bool x) { return x; }));
  }
  CHECK(std::all_of(times.begin(), times.end(), [](int n) { return n == 1; }));
}

// Pairs of a query and a key that it sees, over all query heads of a rank's pieces.
double attended_pairs(const RankShare& share, const Packing& packing) {
  double pairs = 0;
  for (const AttentionStep& step :
       geometry_of_share(share, /*num_ranks=*/1, packing, plain_attention(1, 1, 1)).steps) {
    for (const AttentionCall& call : step.calls) {
      pairs += static_cast<double>(call.queries.num_heads) * pairs_of(call.blocks);
    }
  }
  return pairs;
}

const std::vector<std::vector<int64_t>> kRows = {{48}, {7, 1, 25, 15}, {1, 1, 1, 1, 1, 1, 1, 1}};

}  // namespace

TEST_CASE("head split: every query has one place and finds its keys there, sent once") {
  for (const auto& [N, M] : kShapes) {
    for (int P = 1; P <= 8; ++P) {
      for (const auto& lengths : kRows) {
        const Packing packing = Packing::from_lengths(lengths);
        const int64_t T = packing.num_tokens();
        CAPTURE(fmt::format("heads {}/{}, P={}, {} documents", N, M, P, lengths.size()));
        for (const int waves : {1, 2, 3}) {
          check_complete(split_by_cost(P, N, M, packing, waves), N, N / M, M - 1, packing);
          const int64_t padded = (N + P - 1) / P * P;
          if (waves > padded / P) continue;
          check_complete(split_with_dummy_heads(P, N, M, T, waves), padded, N / M, M - 1, packing);
          if (N % P == 0) {
            check_complete(split_evenly(P, N, M, T, waves), N, N / M, M - 1, packing);
          }
        }
      }
    }
  }
}

TEST_CASE("head split: by cost, no rank attends to more than 1.03 times the mean") {
  for (const auto& [N, M] : {Shape{28, 4}, {14, 2}, {12, 2}, {8, 1}, {2, 1}}) {
    for (const auto& lengths : {std::vector<int64_t>{4096}, {1000, 30, 2500, 566}}) {
      const Packing packing = Packing::from_lengths(lengths);
      for (const int P : {2, 3, 5, 7, 8, 16}) {
        CAPTURE(fmt::format("heads {}/{}, P={}", N, M, P));
        double largest = 0, sum = 0;
        for (const RankShare& share : split_by_cost(P, N, M, packing, 1)) {
          const double pairs = attended_pairs(share, packing);
          largest = std::max(largest, pairs);
          sum += pairs;
        }
        double all = 0;
        for (int64_t length : lengths) all += 0.5 * double(length) * double(length + 1);
        CHECK(sum == doctest::Approx(all * N).epsilon(1e-12));
        CHECK(largest <= 1.03 * sum / P);
      }
    }
  }
}

TEST_CASE("head split: by cost, branches of forked documents weigh what they see") {
  for (const Packing& packing :
       {Packing::from_documents({{4096, Fork{1024, 2560}}}),
        Packing::from_documents({{4096, Fork{1, 4000}}}),
        Packing::from_documents({{1000, Fork{700, 900}}, {30}, {2500, Fork{500, 1500}}, {566}}),
        Packing::from_documents(
            {{4096, {{0, kNoParent}, {700, 0}, {900, 0}, {1500, 2}, {2100, 2}, {2101, 0}}}})}) {
    std::vector<double> seen;  // number of keys that each token sees
    for (int64_t d = 0; d < packing.num_documents(); ++d) {
      const std::vector<TreeSegment>& tree = packing.tree(d);
      for (int64_t i = 0; i < packing.length(d); ++i) {
        const auto behind = std::ranges::upper_bound(tree, i, {}, &TreeSegment::begin);
        seen.push_back(static_cast<double>(i + 1 - (tree.empty() ? 0 : (behind - 1)->shift)));
      }
    }
    for (const auto& [N, M] : {Shape{28, 4}, {14, 2}, {2, 1}}) {
      for (const int P : {2, 3, 5, 8}) {
        CAPTURE(fmt::format("{} documents, heads {}/{}, P={}", packing.num_documents(), N, M, P));
        const HeadSplit split = split_by_cost(P, N, M, packing, 1);
        double largest = 0, sum = 0;
        for (const RankShare& share : split) {
          double pairs = 0;
          for (const AttentionPiece& piece : share.waves[0].pieces) {
            const auto begin = seen.begin() + piece.query.token_begin;
            pairs += static_cast<double>(piece.query.num_heads) *
                     std::accumulate(begin, begin + piece.query.num_tokens, 0.0);
          }
          CHECK(attended_pairs(share, packing) == doctest::Approx(pairs).epsilon(1e-12));
          largest = std::max(largest, pairs);
          sum += pairs;
        }
        CHECK(sum == doctest::Approx(N * std::accumulate(seen.begin(), seen.end(), 0.0)));
        CHECK(largest <= 1.03 * sum / P);
      }
    }
    check_complete(split_by_cost(5, 2, 1, packing, 2), 2, 2, 0, packing);
  }
}

TEST_CASE("head split: early queries of a head get early keys only") {
  // One head over two ranks: half of the causal cost lies before 0.707 of the row.
  const HeadSplit split = split_by_cost(2, 1, 1, Packing::single(1000), 1);
  REQUIRE(split[0].kv_items.size() == 1);
  CHECK(split[0].kv_items[0].num_tokens == doctest::Approx(707).epsilon(0.002));
  CHECK(split[1].kv_items[0] == HeadBlock{0, 1, 0, 1000});
  // A cut between two documents: each rank needs only the keys of its own document.
  const HeadSplit apart = split_by_cost(2, 1, 1, Packing::from_lengths({500, 500}), 1);
  CHECK(apart[0].kv_items[0] == HeadBlock{0, 1, 0, 500});
  CHECK(apart[1].kv_items[0] == HeadBlock{0, 1, 500, 500});
}

TEST_CASE("head split: waves of one group read the keys that the first of them fetched") {
  // 16 query heads and 4 kv heads on each of two ranks, 8 waves: two waves per kv head.
  const HeadSplit split = split_evenly(2, 32, 8, 64, 8);
  for (const RankShare& share : split) {
    REQUIRE(share.kv_items.size() == 4);
    for (int wave = 0; wave < 8; ++wave) {
      CHECK(share.waves[wave].fetched.size() == (wave % 2 == 0 ? 1 : 0));
      CHECK(share.waves[wave].released.size() == (wave % 2 == 1 ? 1 : 0));
      REQUIRE(share.waves[wave].pieces.size() == 1);
      CHECK(share.waves[wave].pieces[0].query.num_heads == 2);
    }
  }
}

}  // namespace longspan
