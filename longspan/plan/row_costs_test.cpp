#include "longspan/plan/row_costs.h"

#include <doctest/doctest.h>

namespace longspan {
namespace {

TEST_CASE("row costs: more ranks shorten long rows much, and short rows little") {
  std::map<int, ParallelPlan> plans;
  for (const int degree : {1, 2, 4}) {
    plans[degree] =
        make_parallel_plan(degree, degree, nullptr, /*num_heads=*/8, /*num_kv_heads=*/4);
  }
  AttentionSpec spec{.num_heads = 8, .num_kv_heads = 4, .key_dim = 64, .value_dim = 64};
  const RowCosts costs(plans, {.layers = {{spec, 4}}, .parameters_per_token = 4e6},
                       cluster_model(/*cuda=*/false, /*ranks_per_machine=*/4, /*element_bytes=*/4));
  CHECK(costs.seconds(65536, 2) < 0.6 * costs.seconds(65536, 1));
  CHECK(costs.seconds(65536, 4) < 0.6 * costs.seconds(65536, 2));
  CHECK(4 * costs.seconds(65536, 4) < 1.3 * costs.seconds(65536, 1));
  CHECK(4 * costs.seconds(16, 4) > 1.5 * costs.seconds(16, 1));
  CHECK(costs.seconds(1000, 1) < costs.seconds(1001, 1));
  CHECK(costs.seconds(65536, 1) > 4 * costs.seconds(16384, 1));
  CHECK(costs.seconds(0, 1) == 0);
}

}  // namespace
}  // namespace longspan
