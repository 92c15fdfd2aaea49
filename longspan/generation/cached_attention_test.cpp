// T: tokens of a sequence, N: query heads, M: kv heads, H: numbers in a head.
#include "longspan/generation/cached_attention.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include "longspan/testing/attention_case.h"
#include "longspan/testing/tolerance.h"

namespace longspan {
namespace {

using testing::AttentionCase;
using testing::random_case;
using testing::relative_error;

// fp64 keeps 16 digits; some hundred terms and an exp lose two.
constexpr double kTolerance = 1e-12;

TEST_CASE("cached attention: a scale and values of another head dim than keys, token by token") {
  AttentionSpec spec = plain_attention(4, 2, 16);
  spec.value_dim = 10;
  spec.scale = 0.41;
  // More tokens than the first capacity.
  const std::vector<int64_t> lengths{CachedAttention::kRoomStep + 20, 7};
  const AttentionCase problem = random_case(Packing::from_lengths(lengths), spec, 3);
  const at::Tensor expected = testing::solve_plainly(problem).out_TNH;
  CachedAttention attention(cpu_block_kernel(), /*num_layers=*/1, /*num_recurrences=*/0,
                            /*num_sequences=*/2);
  const auto attend = [&](const std::vector<int64_t>& sequences, const at::Tensor& index_T,
                          const Packing& packing) {
    attention.begin_pass(sequences);
    const at::Tensor out = attention.attend(
        {problem.q_TNH.index_select(0, index_T), problem.k_TMH.index_select(0, index_T),
         problem.v_TMH.index_select(0, index_T)},
        spec, packing);
    CHECK(relative_error(out, expected.index_select(0, index_T)) < kTolerance);
  };
  const int64_t second = lengths[0];
  // The beginnings of both, then one token of each at a time, then the rest of the first.
  attend({0, 1},
         at::cat({at::arange(0, 250, at::kLong), at::arange(second, second + 3, at::kLong)}),
         Packing::from_lengths({250, 3}));
  for (int64_t i = 0; i < 4; ++i) {
    attend({1, 0}, at::tensor({second + 3 + i, 250 + i}, at::kLong), Packing::from_lengths({1, 1}));
  }
  attend({0}, at::arange(254, second, at::kLong), Packing::single(second - 254));
  CHECK(attention.length(0) == second);
}

TEST_CASE("cached attention: a picture in one pass, whose tokens see each other, in a window too") {
  const std::vector<Document> documents = {{30, {}, {{12, 21}}}, {11, {}, {{1, 9}}}};
  for (const int64_t window : {0, 5}) {
    CAPTURE(window);
    AttentionSpec spec = plain_attention(4, 2, 16);
    if (window > 0) spec.window = window;
    const AttentionCase problem = random_case(Packing::from_documents(documents), spec, 4);
    const at::Tensor expected = testing::solve_plainly(problem).out_TNH;
    CachedAttention attention(cpu_block_kernel(), /*num_layers=*/1, /*num_recurrences=*/0,
                              /*num_sequences=*/2);
    const auto attend = [&](const std::vector<int64_t>& sequences, const at::Tensor& index_T,
                            const Packing& packing) {
      attention.begin_pass(sequences);
      const at::Tensor out = attention.attend(
          {problem.q_TNH.index_select(0, index_T), problem.k_TMH.index_select(0, index_T),
           problem.v_TMH.index_select(0, index_T)},
          spec, packing);
      CHECK(relative_error(out, expected.index_select(0, index_T)) < kTolerance);
    };
    attend({0}, at::arange(0, 7, at::kLong), Packing::single(7));
    attend({1, 0}, at::cat({at::arange(30, 40, at::kLong), at::arange(7, 25, at::kLong)}),
           Packing::from_documents({{10, {}, {{1, 9}}}, {18, {}, {{5, 14}}}}));
    attend({0, 1}, at::tensor({25, 40}, at::kLong), Packing::from_lengths({1, 1}));
  }
}

}  // namespace
}  // namespace longspan
