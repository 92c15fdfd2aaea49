// The order of rows that arrive for experts, by a GPU kernel and on the host.
#include "longspan/kernels/arrived_rows.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <numeric>
#include <vector>

#include "longspan/testing/gpu_check.h"

namespace longspan {
namespace {

using testing::AnyKernels;
using testing::on_gpu;

TEST_CASE("cuda rows: arriving rows are ordered by expert, then by process") {
  // Two processes, three experts: rows 0 and 1 of the first process are for expert 0.
  const ArrivedRows small = order_arrived({2, 0, 1, 1, 3, 0}, 3);
  CHECK(small.order_S.equal(at::tensor({0, 1, 3, 4, 5, 6, 2}, at::kLong)));

  const AnyKernels kernels;
  const std::vector<std::vector<int64_t>> cases{
      {2, 0, 1, 1, 3, 0}, {0, 0, 0}, {300, 0, 1, 0, 0, 0, 7, 513, 2}, {0, 0, 0, 0, 0, 5}};
  for (const std::vector<int64_t>& counts : cases) {
    const int64_t S = std::accumulate(counts.begin(), counts.end(), int64_t{0});
    const ArrivedRows here = order_arrived(counts, 3);
    CHECK(here.order_S.index_select(0, here.places_S).equal(at::arange(S)));
    const auto there = order_arrived_on_gpu(at::tensor(counts, on_gpu(at::kLong)), 3, S);
    REQUIRE(there);
    CHECK(there->order_S.cpu().equal(here.order_S));
    CHECK(there->places_S.cpu().equal(here.places_S));
  }
}

}  // namespace
}  // namespace longspan
