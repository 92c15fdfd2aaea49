// The geometry of every method in the register attends each visible pair exactly once, with data
// that have arrived. sequence_parallel/geometry_test.cpp checks that attention runs accordingly,
// and attention_volume_test.cpp the bytes.
#include "longspan/plan/geometry.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "longspan/registers/method.h"
#include "longspan/rows/token_order.h"
#include "longspan/testing/method_plans.h"

namespace longspan {
namespace {

using Places = std::vector<std::vector<int64_t>>;  // by rank: its tokens' places in the padded row

const Packing kRows[] = {
    Packing::from_lengths({37}),
    Packing::from_lengths({13, 1, 22, 9}),
    Packing::from_lengths({3}),
    Packing::from_documents({{31, Fork{8, 21}}}),
    Packing::from_documents({{11, Fork{5, 9}}, {6}, {3, Fork{1, 2}}, {14, Fork{9, 10}}}),
    Packing::from_documents({{13, Fork{5, 9}, {{1, 5}, {6, 8}, {9, 13}}}, {25, {}, {{3, 23}}}}),
    Packing::from_documents(
        {{5},
         {29, {{0, kNoParent}, {6, 0}, {9, 0}, {13, 2}, {14, 2}, {20, 4}, {22, 4}, {25, 0}}}})};

/// True if the row's mask lets the query see the key. Both are places in the padded row.
bool is_allowed(const Packing& padded, int64_t query, int64_t key) {
  const auto& ends = padded.boundaries();
  const auto document_of = [&](int64_t place) {
    return std::upper_bound(ends.begin(), ends.end(), place) - ends.begin() - 1;
  };
  const int64_t document = document_of(query);
  const bool in_one_span = std::ranges::any_of(padded.two_way(), [&](const TwoWaySpan& span) {
    return span.begin <= std::min(query, key) && std::max(query, key) < span.end;
  });
  if (in_one_span) return true;
  if (key > query || document_of(key) != document) return false;
  const std::vector<TreeSegment>& tree = padded.tree(document);
  if (tree.empty()) return true;
  const auto segment_of = [&](int64_t token) {
    return std::ranges::upper_bound(tree, token - padded.begin(document), {}, &TreeSegment::begin) -
           tree.begin() - 1;
  };
  int64_t segment = segment_of(query);
  while (segment != kNoParent && segment != segment_of(key)) segment = tree[segment].parent;
  return segment != kNoParent;
}

/// A padded row needs no further padding, so a token's index in it is its place.
Places places_of(const ParallelPlan& plan, const Packing& padded) {
  Places places;
  for (int rank = 0; rank < plan.sequence_size; ++rank) {
    const TokenOrder order = plan.method->token_order(plan, padded, 1, rank);
    CHECK(order.packing == padded);
    CHECK(std::ranges::is_sorted(order.index));
    places.push_back(order.index);
  }
  return places;
}

std::vector<int64_t> places_in(const TokenSpan& span, const Places& places) {
  std::vector<int64_t> all;
  for (int rank = span.first_rank; rank < span.first_rank + span.num_ranks; ++rank) {
    all.insert(all.end(), places[rank].begin(), places[rank].end());
  }
  std::ranges::sort(all);
  return {all.begin() + span.begin, all.begin() + span.begin + span.length};
}

/// The queries or keys of a rank: heads by tokens.
class Held {
 public:
  explicit Held(const std::vector<int64_t>& own) : own_(own.begin(), own.end()) {}

  void add(const HeadTokens& heads, const Places& places) {
    for (const int64_t place : places_in(heads.tokens, places)) {
      for (int64_t i = 0; i < heads.num_heads; ++i) arrived_.insert({heads.head_begin + i, place});
    }
  }

  bool has(const HeadTokens& heads, const Places& places) const {
    for (const int64_t place : places_in(heads.tokens, places)) {
      for (int64_t i = 0; i < heads.num_heads && !own_.contains(place); ++i) {
        if (!arrived_.contains({heads.head_begin + i, place})) return false;
      }
    }
    return true;
  }

 private:
  std::set<int64_t> own_;
  std::set<std::pair<int64_t, int64_t>> arrived_;
};

/// Counts how often each query of each slice of each head attends each key, over all ranks and
/// steps.
class Attended {
 public:
  Attended(const ParallelPlan& plan, const AttentionSpec& spec, const Packing& padded)
      : spec_(spec),
        T_(padded.num_tokens()),
        counts_(spec.num_heads * plan.num_head_slices * T_ * T_) {}

  void add(const AttentionCall& call, const RankGeometry& geometry, const Places& places) {
    const auto queries = places_in(call.queries.tokens, places);
    const auto keys = places_in(call.keys.tokens, places);
    const int64_t group = call.queries.num_heads / call.keys.num_heads;
    right_heads_ = right_heads_ && group * call.keys.num_heads == call.queries.num_heads;
    for (int64_t i = 0; i < call.queries.num_heads; ++i) {
      const int64_t head = call.queries.head_begin + i;
      if (head >= spec_.num_heads) continue;  // a dummy head
      const int64_t of_layer = spec_.num_heads / spec_.num_kv_heads;
      right_heads_ = right_heads_ && call.keys.head_begin + i / group == head / of_layer;
      int64_t* of_head = &counts_[(head * geometry.num_slices + geometry.slice) * T_ * T_];
      for (const Block& block : call.blocks) {
        for (int64_t q = 0; q < block.q_length; ++q) {
          const KeyRange seen = keys_of(block, q);
          for (int64_t k = seen.begin; k < seen.end; ++k) {
            of_head[queries.at(block.q_begin + q) * T_ + keys.at(block.k_begin + k)] += 1;
          }
        }
      }
    }
  }

  /// True if each query head used its own kv head, and `right(count, query, key)` holds for every
  /// count.
  template <typename Right>
  bool is(const Right& right) const {
    bool all_right = right_heads_;
    for (size_t i = 0; i < counts_.size(); ++i) {
      const auto pair = static_cast<int64_t>(i) % (T_ * T_);
      all_right = all_right && right(counts_[i], pair / T_, pair % T_);
    }
    return all_right;
  }

 private:
  AttentionSpec spec_;
  int64_t T_;
  std::vector<int64_t> counts_;
  bool right_heads_ = true;
};

TEST_CASE("geometry: every pair that the row's mask allows is attended once, with what is here") {
  for (const testing::MethodPlan& each : testing::plans_of_every_method(5)) {
    const auto& [plan, spec] = each;
    const AttentionShape shape(spec);
    for (const Packing& row : kRows) {
      CAPTURE(fmt::format("{} P={}, heads {}/{}, {} documents, {} tokens", describe_method(plan),
                          plan.sequence_size, spec.num_heads, spec.num_kv_heads,
                          row.num_documents(), row.num_tokens()));
      const Packing padded = plan.method->padded_row(plan, row);
      const Places places = places_of(plan, padded);
      Attended attended(plan, spec, padded);
      bool all_here = true;
      for (int rank = 0; rank < plan.sequence_size; ++rank) {
        const RankGeometry geometry = plan.method->geometry(plan, shape, padded, rank);
        Held queries(places[rank]), keys(places[rank]);
        for (const AttentionStep& step : geometry.steps) {
          for (const HeadTokens& heads : step.queries) queries.add(heads, places);
          for (const HeadTokens& heads : step.keys) keys.add(heads, places);
          for (const HeadTokens& heads : step.context_keys) keys.add(heads, places);
          for (const AttentionCall& call : step.calls) {
            all_here = all_here && queries.has(call.queries, places) && keys.has(call.keys, places);
            attended.add(call, geometry, places);
          }
        }
      }
      CHECK(all_here);
      CHECK(attended.is([&](int64_t count, int64_t query, int64_t key) {
        return count == (is_allowed(padded, query, key) ? 1 : 0);
      }));
    }
  }
}

/// Returns positions for the window, by place: a branch continues from its parent.
std::vector<int64_t> positions_of(const Packing& padded) {
  std::vector<int64_t> positions(padded.num_tokens());
  std::iota(positions.begin(), positions.end(), 0);
  for (int64_t d = 0; d < padded.num_documents(); ++d) {
    for (const TreeSegment& segment : padded.tree(d)) {
      for (int64_t t = segment.begin; t < segment.end; ++t) {
        positions[padded.begin(d) + t] -= segment.shift;
      }
    }
  }
  return positions;
}

TEST_CASE("geometry: a sliding window keeps what is inside, once, and needs no other keys") {
  for (const testing::MethodPlan& each : testing::plans_of_every_method(4)) {
    const ParallelPlan& plan = each.plan;
    for (const Packing& row : {kRows[0], kRows[1], kRows[2], kRows[4], kRows[5], kRows[6]}) {
      const Packing padded = plan.method->padded_row(plan, row);
      const Places places = places_of(plan, padded);
      const std::vector<int64_t> positions = positions_of(padded);
      for (const int64_t window : {1, 5, 64}) {
        CAPTURE(fmt::format("{} P={}, window {}, {} documents", describe_method(plan),
                            plan.sequence_size, window, row.num_documents()));
        AttentionSpec spec = each.spec;
        spec.window = window;
        Attended attended(plan, spec, padded);
        bool all_here = true;
        for (int rank = 0; rank < plan.sequence_size; ++rank) {
          const RankGeometry geometry = plan.method->geometry(plan, spec, padded, rank);
          Held keys(places[rank]);
          for (const AttentionStep& step : geometry.steps) {
            for (const HeadTokens& heads : step.keys) keys.add(heads, places);
            for (const HeadTokens& heads : step.context_keys) keys.add(heads, places);
            for (const AttentionCall& call : step.calls) {
              attended.add(call, geometry, places);
              for (const Block& block : call.blocks) {
                HeadTokens used = call.keys;
                used.tokens.begin += block.k_begin;
                used.tokens.length = block.k_length;
                all_here = all_here && keys.has(used, places);
              }
            }
          }
        }
        CHECK(all_here);
        CHECK(attended.is([&](int64_t count, int64_t query, int64_t key) {
          const int64_t apart = positions[query] - positions[key];
          return count == (is_allowed(padded, query, key) && apart < window ? 1 : 0);
        }));
      }
    }
  }
}

/// Returns the keys of one head that reach ranks from others, and the last hop in which any rank
/// attends. Window 0: none.
std::pair<int64_t, int> foreign_keys(const ParallelPlan& plan, int64_t length, int64_t window) {
  AttentionSpec spec = plain_attention(1, 1, 1);
  if (window > 0) spec.window = window;
  const Packing row = Packing::single(length);
  int64_t keys = 0;
  int last_hop = 0;
  for (int rank = 0; rank < plan.sequence_size; ++rank) {
    for (const AttentionStep& step : plan.method->geometry(plan, spec, row, rank).steps) {
      for (const HeadTokens& heads : step.context_keys) {
        keys += foreign_tokens(heads.tokens, rank, length / plan.sequence_size);
      }
      for (const AttentionCall& call : step.calls) {
        if (!call.blocks.empty()) last_hop = std::max(last_hop, step.hop);
      }
    }
  }
  return {keys, last_hop};
}

TEST_CASE("geometry: in a sliding window fewer keys travel, and later hops have nothing to do") {
  const auto plan = [](const char* name) {
    return make_parallel_plan(4, 4, method_named(name), /*num_heads=*/1, /*num_kv_heads=*/1);
  };
  // Four ranks of 16 tokens. The first query of a rank sees 7 keys of the previous rank.
  CHECK(foreign_keys(plan("allgather"), 64, 0).first == 16 + 32 + 48);
  CHECK(foreign_keys(plan("allgather"), 64, 8).first == 3 * 7);
  CHECK(foreign_keys(plan("allgather"), 64, 1).first == 0);
  CHECK(foreign_keys(plan("ring"), 64, 0) == std::pair<int64_t, int>{4 * 3 * 16, 3});
  CHECK(foreign_keys(plan("ring"), 64, 8) == std::pair<int64_t, int>{3 * 7, 1});
  CHECK(foreign_keys(plan("ring"), 64, 18) == std::pair<int64_t, int>{3 * 16 + 2, 2});
  CHECK(foreign_keys(plan("ring"), 64, 1) == std::pair<int64_t, int>{0, 0});
  // Of eight chunks of 8 tokens, seven see 7 keys of the previous chunk, and one of these is on the
  // same rank.
  CHECK(foreign_keys(plan("zigzag-ring"), 64, 8).first == 6 * 7);
  CHECK(foreign_keys(plan("llama3"), 64, 8).first == 6 * 7);
  // The next three tokens see each key, and all are on other ranks; the row's last keys have no
  // such tokens.
  CHECK(foreign_keys(plan("striped-ring"), 64, 8).first == 4 * 3 * 16 - 6);
}

TEST_CASE("geometry: the busiest rank's work, by hop") {
  const Packing row = Packing::single(64);  // 16 tokens on each of four ranks
  const auto work = [&](const char* name, int64_t num_heads, int64_t tile = 1) {
    const ParallelPlan plan = make_parallel_plan(4, 4, method_named(name), num_heads, num_heads);
    return busiest_rank(plan, plain_attention(num_heads, num_heads, 16), row, tile);
  };
  using Pairs = std::vector<double>;
  using Calls = std::vector<int64_t>;
  const RankWork zigzag = work("zigzag-ring", 3);
  CHECK(zigzag.heads == 3);
  CHECK(zigzag.head_pairs == Pairs{3 * 136, 3 * 128, 3 * 128, 3 * 128});
  CHECK(zigzag.calls == Calls{1, 1, 1, 1});
  // All ranks wait for the one that sees most: the first sees no other rank's keys, the last all of
  // them.
  CHECK(work("ring", 1).head_pairs == Pairs{136, 256, 256, 256});
  CHECK(work("allgather", 1).head_pairs == Pairs{48 * 16 + 136});
  CHECK(work("ulysses", 8).head_pairs == Pairs{2 * 64 * 65 / 2});
  CHECK(work("ulysses", 8).heads == 2);
  CHECK(work("dummy-head-ulysses", 5).head_pairs == Pairs{2 * 64 * 65 / 2});
  // A rank's run of a head and a half is two calls, of tiles that are computed whole.
  CHECK(work("balanced-ulysses", 6).calls == Calls{2});
  CHECK(work("ulysses", 4, 16).head_pairs == Pairs{16 * 16 * 10});
}

}  // namespace
}  // namespace longspan
