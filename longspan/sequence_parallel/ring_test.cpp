#include <doctest/doctest.h>

#include "longspan/rows/padding.h"
#include "longspan/testing/method_checks.h"

namespace longspan {
namespace {

const Method* const kMethod = method_named("ring");

testing::TrafficFormula formula_of(int R) {
  return [R](int64_t T, int64_t, int64_t M, int64_t H, int64_t bytes, int64_t grad_bytes) {
    return Traffic{.shift = (R - 1) * T * 2 * M * H * (2 * bytes + grad_bytes)};
  };
}

TEST_CASE("ring: undistributed attention in fp64, for many numbers of ranks") {
  for (const int R : {2, 3, 5, 8})
    testing::check_solves(testing::plan_of(kMethod, R), formula_of(R));
}

TEST_CASE("ring: replayed with the same bits") {
  testing::check_replays(testing::plan_of(kMethod, 3), formula_of(3));
}

TEST_CASE("ring: only the row is padded") {
  for (const int R : {2, 3}) {
    testing::check_token_orders(testing::plan_of(kMethod, R),
                                [R](const Packing& row, int64_t multiple) {
                                  return round_up(row.num_tokens(), R * multiple);
                                });
  }
}

}  // namespace
}  // namespace longspan
