#include "longspan/comm/descriptors.h"

#include <doctest/doctest.h>
#include <sys/resource.h>

#include <algorithm>
#include <string>

#include "longspan/base/user_error.h"

namespace longspan {

TEST_CASE("descriptors: more than the limit is refused, with both numbers") {
  rlimit limit{};
  REQUIRE(getrlimit(RLIMIT_NOFILE, &limit) == 0);
  const rlimit before = limit;
  limit.rlim_cur = std::min<rlim_t>(limit.rlim_cur, 4096);
  REQUIRE(setrlimit(RLIMIT_NOFILE, &limit) == 0);
  CHECK(descriptor_limit() == static_cast<int64_t>(limit.rlim_cur));
  require_descriptors("A process", 30);

  std::string message;
  try {
    require_descriptors("A process", int64_t{1} << 62);
  } catch (const UserError& error) {
    message = error.what();
  }
  CHECK(message.find("A process needs up to 4611686018427387904 open files") == 0);
  CHECK(message.find("ulimit -n") != std::string::npos);
  CHECK(message.find(std::to_string(limit.rlim_cur) + " are allowed") != std::string::npos);
  CHECK(setrlimit(RLIMIT_NOFILE, &before) == 0);
}

TEST_CASE("descriptors: a rank needs a connection to each other rank of each group") {
  ParallelPlan plan;
  const int64_t alone = descriptors_of_rank(plan, /*serves_store=*/false);
  plan.world_size = plan.data_size = 100;
  const int64_t many = descriptors_of_rank(plan, /*serves_store=*/false);
  CHECK(many > alone + 99);
  CHECK(descriptors_of_rank(plan, /*serves_store=*/true) > many + 300);
  plan.shard_size = 100;
  CHECK(descriptors_of_rank(plan, /*serves_store=*/false) > many + 99);
  const int64_t sharded = descriptors_of_rank(plan, /*serves_store=*/false);
  plan.expert_parallel_size = 10;  // groups of ranks that divide experts, and that shard an expert
  CHECK(descriptors_of_rank(plan, /*serves_store=*/false) > sharded + 9 + 9);
  CHECK(descriptors_of_launcher(100) > descriptors_of_launcher(1) + 300);
}

}  // namespace longspan
