#include "longspan/plan/network_rates.h"

#include <doctest/doctest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "longspan/base/user_error.h"
#include "longspan/plan/cost_model.h"
#include "longspan/plan/parallel_plan.h"
#include "longspan/testing/temporary_folder.h"

namespace longspan {
namespace {

constexpr NetworkRates kRates{.inside_bytes = 3e11,
                              .between_bytes = 4e10,
                              .inside_delay = 1e-5,
                              .between_delay = 2e-5,
                              .ranks_per_machine = 8,
                              .gpus = true};

TEST_CASE("network rates: a file is read as it was written, and others are refused") {
  const testing::TemporaryFolder folder;
  const std::string path = folder / "network.json";
  const auto written = [&](const std::string& text) {
    std::ofstream(path) << text;
    return path;
  };
  nlohmann::ordered_json file;
  file["rates"] = json_of(kRates);
  const auto read = [&](const std::string& text, bool gpus = true, bool several = true) {
    return read_network_rates(written(text), gpus, several);
  };
  CHECK(read(file.dump()) == kRates);
  CHECK_THROWS_WITH_AS(read(file.dump(), /*gpus=*/false),
                       doctest::Contains("those of GPUs, and the run computes on CPUs"), UserError);
  file["rates"]["between_bytes_per_second"] = 0;
  CHECK(read(file.dump(), true, /*several=*/false).between_bytes == 0);
  CHECK_THROWS_WITH_AS(read(file.dump()), doctest::Contains("those of one machine"), UserError);
  file["rates"]["between_delay_seconds"] = -1;
  CHECK_THROWS_WITH_AS(read(file.dump()),
                       doctest::Contains("\"between_delay_seconds\" of \"rates\" is no number"),
                       UserError);
  file["rates"].erase("inside_bytes_per_second");
  CHECK_THROWS_WITH_AS(read(file.dump()), doctest::Contains("inside_bytes_per_second"), UserError);
  CHECK_THROWS_WITH_AS(read("[1]"), doctest::Contains("network.json that "), UserError);
  CHECK_THROWS_AS(read_network_rates(folder / "none.json", true, true), UserError);
}

TEST_CASE("network rates: measured links take the place of assumed ones, and no others") {
  const ClusterModel assumed = cluster_model(/*cuda=*/true, 8, 2),
                     measured = cluster_model(/*cuda=*/true, 8, 2, kRates),
                     within = cluster_model(/*cuda=*/true, 8, 2, {.inside_bytes = 3e11});
  CHECK(measured.inside_bytes == 3e11);
  CHECK(measured.between_bytes == 4e10);
  CHECK(measured.inside_delay == 1e-5);
  CHECK(measured.between_delay == 2e-5);
  CHECK(measured.forward_flops == assumed.forward_flops);
  CHECK(within.inside_bytes == 3e11);
  CHECK(within.between_bytes == assumed.between_bytes);
  // The port of a machine of CPUs serves all its ranks.
  CHECK(cluster_model(/*cuda=*/false, 8, 4, kRates).between_bytes == 8 * 4e10);
}

TEST_CASE("network rates: auto chooses by them, and the line says so") {
  PlanRequest request;
  request.world_size = request.sequence_size = 16;
  request.ranks_per_machine = 8;
  request.num_heads = 32;
  request.num_kv_heads = 8;
  request.head_dim = 128;
  request.row = Packing::single(32768);
  request.cuda = true;
  request.element_bytes = 2;
  const ParallelPlan assumed = make_parallel_plan(request);
  CHECK(assumed.reason.find("network_rates") == std::string::npos);
  // Machines that are linked as GPUs of one are.
  request.network = {
      .inside_bytes = 240e9, .between_bytes = 240e9, .inside_delay = 2e-5, .between_delay = 2e-5};
  const ParallelPlan fast = make_parallel_plan(request);
  CHECK(fast.method == method_named("ulysses"));
  CHECK(fast.reason.ends_with("; by measured rates of the network"));
  CHECK(assumed.method != fast.method);
}

}  // namespace
}  // namespace longspan
