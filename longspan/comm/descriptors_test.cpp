#include "longspan/comm/descriptors.h"

#include <doctest/doctest.h>
#include <sys/resource.h>

#include <string>

#include "longspan/config/user_error.h"

namespace longspan {

TEST_CASE("descriptors: the limit is raised as far as it goes, and then said") {
  rlimit before{};
  REQUIRE(getrlimit(RLIMIT_NOFILE, &before) == 0);
  rlimit low = before;
  low.rlim_cur = 32;
  REQUIRE(setrlimit(RLIMIT_NOFILE, &low) == 0);
  const int64_t raised = raised_descriptor_limit();
  rlimit after{};
  getrlimit(RLIMIT_NOFILE, &after);
  setrlimit(RLIMIT_NOFILE, &before);
  CHECK(after.rlim_cur == before.rlim_max);
  CHECK(raised > 32);
  require_descriptors("A process", 30);

  std::string message;
  try {
    require_descriptors("A process", int64_t{1} << 62);
    if (before.rlim_max == RLIM_INFINITY) return;  // nothing is too much there
  } catch (const UserError& error) {
    message = error.what();
  }
  CHECK(message.find("A process needs up to 4611686018427387904 open files") == 0);
  CHECK(message.find("ulimit -n") != std::string::npos);
  CHECK(message.find(std::to_string(before.rlim_max) + " are allowed") != std::string::npos);
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
  const int64_t divided = descriptors_of_rank(plan, /*serves_store=*/false);
  plan.expert_parallel_size = 10;  // ranks that share out experts, and those that divide an expert
  CHECK(descriptors_of_rank(plan, /*serves_store=*/false) > divided + 9 + 9);
  CHECK(descriptors_of_launcher(100) > descriptors_of_launcher(1) + 300);
}

}  // namespace longspan
