#include <doctest/doctest.h>

#include "longspan/rows/padding.h"
#include "longspan/testing/method_checks.h"

namespace longspan {
namespace {

const Method* const kMethod = method_named("loongtrain");

// The bytes of one ring, whatever the windows, plus those of Ulysses around it: a rank of U keeps 1
// / U of the heads of q, k, v and out, forward and backward.
testing::TrafficFormula formula_of(int R, int U = 1) {
  return [R, U](int64_t T, int64_t N, int64_t M, int64_t H, int64_t bytes, int64_t grad_bytes) {
    return Traffic{.all_to_all = 2 * (U - 1) * T * (2 * N + 2 * M) * H * bytes / U,
                   .shift = (R - 1) * T * 2 * M * H * (2 * bytes + grad_bytes)};
  };
}

TEST_CASE("double ring: undistributed attention in fp64, for windows of several rings") {
  for (const auto& [R, window] : {std::pair{2, 1}, {3, 3}, {4, 2}, {6, 2}, {6, 3}, {8, 4}}) {
    CAPTURE(window);
    testing::check_solves(testing::plan_of(kMethod, R, 1, window), formula_of(R));
  }
}

TEST_CASE("usp and loongtrain: Ulysses over a ring and over a double ring") {
  for (const auto& [R, window] : {std::pair{2, 1}, {3, 1}, {4, 2}}) {
    CAPTURE(window);
    const auto method = window == 1 ? method_named("usp") : kMethod;
    testing::check_solves(testing::plan_of(method, R, 2, window), formula_of(R, 2));
  }
}

TEST_CASE("double ring: replayed with the same bits") {
  testing::check_replays(testing::plan_of(kMethod, 4, 1, 2), formula_of(4));
}

TEST_CASE("double ring: each document is padded to a multiple of 2R") {
  testing::check_token_orders(
      testing::plan_of(kMethod, 4, 1, 2), [](const Packing& row, int64_t multiple) {
        int64_t length = 0;
        for (int64_t document = 0; document < row.num_documents(); ++document) {
          length += round_up(row.length(document), 8);
        }
        while (length / 4 % multiple != 0) length += 8;
        return length;
      });
}

}  // namespace
}  // namespace longspan
