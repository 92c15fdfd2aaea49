#include <doctest/doctest.h>

#include "longspan/rows/padding.h"
#include "longspan/testing/method_checks.h"

namespace longspan {
namespace {

const Method* const kMethod = method_named("llama3");

testing::TrafficFormula formula_of(int R) {
  return [R](int64_t T, int64_t, int64_t M, int64_t H, int64_t bytes, int64_t grad_bytes) {
    return Traffic{.all_gather = (R - 1) * T * 2 * M * H * 2 * bytes,
                   .reduce_scatter = (R - 1) * T * 2 * M * H * grad_bytes};
  };
}

TEST_CASE("llama3: undistributed attention in fp64, for many numbers of ranks") {
  for (const int R : {2, 3, 4, 7})
    testing::check_solves(testing::plan_of(kMethod, R), formula_of(R));
}

TEST_CASE("llama3: replayed with the same bits") {
  testing::check_replays(testing::plan_of(kMethod, 3), formula_of(3));
}

TEST_CASE("llama3: each document is padded to a multiple of 2R") {
  for (const int R : {2, 3}) {
    testing::check_token_orders(
        testing::plan_of(kMethod, R), [R](const Packing& row, int64_t multiple) {
          int64_t length = 0;
          for (int64_t document = 0; document < row.num_documents(); ++document) {
            length += round_up(row.length(document), 2 * R);
          }
          while (length / R % multiple != 0) length += 2 * R;
          return length;
        });
  }
}

}  // namespace
}  // namespace longspan
