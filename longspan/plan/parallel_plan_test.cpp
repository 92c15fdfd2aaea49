#include "longspan/plan/parallel_plan.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "longspan/base/user_error.h"
#include "longspan/plan/attention_volume.h"
#include "longspan/plan/plan_checks.h"
#include "longspan/plan/rank_groups.h"

namespace longspan {
namespace {

PlanRequest request_of(int world_size, int sequence_size, const Method* method, int64_t num_heads,
                       int64_t num_kv_heads) {
  PlanRequest request;
  request.world_size = world_size;
  request.sequence_size = sequence_size;
  request.method = method;
  request.num_heads = num_heads;
  request.num_kv_heads = num_kv_heads;
  return request;
}

std::string error_of(const PlanRequest& request) {
  try {
    make_parallel_plan(request);
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

void check_error(const PlanRequest& request, std::initializer_list<const char*> parts) {
  const std::string error = error_of(request);
  CAPTURE(error);
  for (const char* part : parts) {
    CAPTURE(part);
    CHECK(error.find(part) != std::string::npos);
  }
}

TEST_CASE("plan: groups of ZeRO that lie on two machines though one has room") {
  PlanRequest request = request_of(12, 2, method_named("ring"), 4, 2);
  const auto warning = [&](std::optional<int64_t> shard_size, int ranks_per_machine) {
    request.shard_size = shard_size;
    request.ranks_per_machine = ranks_per_machine;
    return warning_of_shards(request);
  };
  // On two machines of six: ranks 4 to 7 form a group.
  const std::string crossing = warning(4, 6);
  CHECK(crossing.find("zero_shard_size: 4 does not divide the 6 processes") != std::string::npos);
  CHECK(crossing.find("1, 2, 3, 6") != std::string::npos);
  CHECK(warning(3, 6) == "");
  CHECK(warning(6, 6) == "");
  CHECK(warning(12, 6) == "");            // larger than a machine
  CHECK(warning(std::nullopt, 6) == "");  // all ranks, ZeRO's default
  CHECK(warning(4, 12) == "");            // one machine
  CHECK(warning(4, 0) == "");             // unknown machines
}

TEST_CASE("plan: a recurrence on GPUs, as elsewhere") {
  for (const int sequence_size : {1, 2}) {
    PlanRequest request = request_of(2, sequence_size, method_named("ulysses"), 4, 2);
    request.recurrence = RecurrenceSpec{
        .num_key_heads = 2, .num_value_heads = 4, .key_dim = 16, .value_dim = 16, .conv_width = 4};
    CHECK(error_of(request).empty());
    request.cuda = true;
    CHECK(error_of(request).empty());
  }
}

TEST_CASE(
    "plan: a recurrence exchanges heads, or passes states where heads would leave ranks idle") {
  const auto way = [](int num_key_heads, int num_value_heads) {
    PlanRequest request = request_of(4, 4, method_named("zigzag-ring"), 4, 4);
    request.row = Packing::single(65536);
    request.recurrence = RecurrenceSpec{.num_key_heads = num_key_heads,
                                        .num_value_heads = num_value_heads,
                                        .key_dim = 64,
                                        .value_dim = 64,
                                        .conv_width = 4};
    const ParallelPlan plan = make_parallel_plan(request);
    const bool passes = plan.recurrent_way == RecurrentWay::kStates;
    CHECK(plan.reason.find(passes ? "pass states on" : "exchange heads") != std::string::npos);
    return plan.recurrent_way;
  };
  CHECK(way(16, 32) == RecurrentWay::kHeads);
  CHECK(way(1, 1) == RecurrentWay::kStates);
}

TEST_CASE("plan: what ZeRO divides") {
  PlanRequest request = request_of(8, 2, method_named("ring"), 4, 2);
  CHECK(make_parallel_plan(request).shard_size == 1);
  request.zero_stage = 1;
  CHECK(make_parallel_plan(request).shard_size == 8);
  request.shard_size = 4;
  CHECK(make_parallel_plan(request).shard_size == 4);
  request.shard_size = 3;
  check_error(request, {"zero_shard_size: 3 does not divide the number of processes, 8",
                        "Choose one of 1, 2, 4, 8"});
}

TEST_CASE("plan: who shares out experts") {
  PlanRequest request = request_of(12, 2, method_named("ring"), 4, 2);
  request.num_experts = 16;
  CHECK(make_parallel_plan(request).expert_parallel_size == 1);
  request.expert_parallel_size = 4;
  CHECK(make_parallel_plan(request).expert_parallel_size == 4);
  request.sequence_size = 1;
  CHECK(make_parallel_plan(request).expert_parallel_size == 4);
  // Of the ranks that shard a copy of the model, every fourth has the same experts.
  request.zero_stage = 3;
  CHECK(make_parallel_plan(request).shard_size == 12);
  CHECK(expert_shard_size(12, 4) == 3);
  CHECK(expert_shard_size(4, 4) == 1);
  CHECK(expert_shard_size(1, 4) == 1);
  request.shard_size = 1;  // one copy per rank
  CHECK(make_parallel_plan(request).expert_parallel_size == 4);
  request.shard_size = 6;
  check_error(request, {"zero_shard_size: 6 is not a multiple of expert_parallel_size, 4"});
  request.shard_size = std::nullopt;
  request.expert_parallel_size = 5;
  check_error(request, {"expert_parallel_size: 5 does not divide the number of processes, 12",
                        "Choose one of 1, 2, 3, 4, 6, 12"});
  request.expert_parallel_size = 6;
  check_error(request, {"expert_parallel_size: 6 does not divide the 16 experts",
                        "Choose one of 1, 2, 4, 8, 16"});
  request.num_experts = 0;
  check_error(request, {"the model has no experts to share out"});
  request.expert_parallel_size = 0;
  check_error(request, {"expert_parallel_size: 0 must be at least 1"});
}

int64_t num_connected(const ParallelPlan& plan) { return std::ssize(connected_groups(plan)); }

TEST_CASE("plan: the groups that a rank is in") {
  CHECK(num_connected({}) == 0);
  // World, which is also data and replicas.
  CHECK(num_connected({.world_size = 4, .data_size = 4, .num_head_slices = 1, .reason = ""}) == 1);
  // World is also sequence and ring.
  CHECK(num_connected({.world_size = 4,
                       .sequence_size = 4,
                       .ring_size = 4,
                       .window_size = 4,
                       .num_head_slices = 4,
                       .reason = ""}) == 1);
  // Data, sequence, ring and Ulysses differ; ZeRO's group is always separate.
  const ParallelPlan hybrid{.world_size = 16,
                            .data_size = 2,
                            .sequence_size = 8,
                            .ring_size = 4,
                            .ulysses_size = 2,
                            .window_size = 2,
                            .num_head_slices = 8,
                            .shard_size = 8,
                            .reason = ""};
  // World, sequence, data, ring, ulysses, window, windows, shard, replicas.
  CHECK(num_connected(hybrid) == 9);
  // World, shard, experts, and the ranks that shard an expert.
  CHECK(num_connected({.world_size = 8,
                       .data_size = 8,
                       .shard_size = 8,
                       .expert_parallel_size = 2,
                       .reason = ""}) == 4);
}

TEST_CASE("plan: sizes of a mesh") {
  const ParallelPlan plan = make_parallel_plan(8, 2, method_named("ulysses"), 14, 2);
  CHECK(plan.data_size == 4);
  CHECK(plan.ulysses_size == 2);
  CHECK(plan.ring_size == 1);
  for (const Method* method : {method_named("ring"), method_named("striped-ring"),
                               method_named("zigzag-ring"), method_named("llama3")}) {
    CHECK(make_parallel_plan(8, 4, method, 14, 2).ring_size == 4);
  }
  for (const Method* method : {method_named("dummy-head-ulysses"), method_named("xtuner-ulysses"),
                               method_named("balanced-ulysses")}) {
    CHECK(make_parallel_plan(8, 4, method, 14, 2).ulysses_size == 4);
  }
  CHECK(make_parallel_plan(8, 8, method_named("xtuner-ulysses"), 14, 2).num_head_slices == 4);
  CHECK(make_parallel_plan(8, 8, method_named("xtuner-ulysses"), 16, 2).num_head_slices == 1);
  CHECK(make_parallel_plan(4, 1, method_named("ulysses"), 7, 1).method == &kLocal);
  CHECK(make_parallel_plan(4, 1, method_named("usp"), 7, 1).ulysses_size == 1);
}

TEST_CASE("plan: every plan of every mode is whole") {
  for (int P = 2; P <= 16; ++P) {
    for (const auto& [N, M] :
         {std::pair{8, 8}, {8, 2}, {8, 1}, {14, 2}, {28, 4}, {12, 2}, {40, 8}, {6, 6}, {7, 7}}) {
      CAPTURE(fmt::format("P={} heads {}/{}", P, N, M));
      for (const Method* method : all_methods()) {
        CAPTURE(std::string(method->name));
        if (!can_split(*method, P, plain_attention(N, M, 64))) {
          check_error(request_of(P, P, method, N, M), {"balanced-ulysses", "zigzag-ring"});
          continue;
        }
        const ParallelPlan plan = make_parallel_plan(P, P, method, N, M);
        CHECK(plan.method == method);
        CHECK(plan.ulysses_size * plan.ring_size == P);
        CHECK(plan.ring_size % plan.window_size == 0);
        if (plan.ring_size > 1) CHECK(N % plan.ulysses_size == 0);
        CHECK(plan.reason.starts_with(fmt::format("sequence parallelism: {}", method->name)));
        CHECK(plan.reason.find('\n') == std::string::npos);
      }
      const ParallelPlan chosen = make_parallel_plan(P, P, nullptr, N, M);
      CHECK(can_split(*chosen.method, P, plain_attention(N, M, 64)));
      CHECK(chosen.reason.find("(auto)") != std::string::npos);
    }
  }
}

TEST_CASE("plan: degrees") {
  PlanRequest request = request_of(8, 8, method_named("usp"), 28, 4);
  request.ulysses_degree = 2;
  CHECK(make_parallel_plan(request).ring_size == 4);
  request.ulysses_degree.reset();
  request.ring_degree = 2;
  CHECK(make_parallel_plan(request).ulysses_size == 4);
  request.method = nullptr;  // degrees without a mode select usp
  CHECK(make_parallel_plan(request).method == method_named("usp"));
  request.method = method_named("usp");
  request.ring_degree = 8;
  CHECK(make_parallel_plan(request).ulysses_size == 1);

  request.ring_degree = 4;
  request.ulysses_degree = 4;
  check_error(request, {"degree: 4 times", "is 16, and sequence_parallel_size is 8"});
  request.ring_degree.reset();
  request.ulysses_degree = 3;
  check_error(request,
              {"ulysses_degree: 3 does not divide sequence_parallel_size, 8", "1, 2, 4, 8"});
  request.ulysses_degree = 8;
  check_error(request, {"28 attention heads", "to one of 1, 2, 4", "balanced-ulysses"});
  request.method = method_named("zigzag-ring");
  check_error(request, {"sequence_parallel_ulysses_degree: 8", "zigzag-ring", "usp, loongtrain"});
}

TEST_CASE("plan: one rank to a row refuses what asks for several, but not a mode") {
  for (const Method* method : {static_cast<const Method*>(nullptr), method_named("loongtrain")}) {
    PlanRequest request = request_of(8, 1, method, 28, 4);
    request.ulysses_degree = request.ring_degree = request.window_size = request.head_waves = 1;
    CHECK(make_parallel_plan(request).method == &kLocal);
    request.ulysses_degree = 4;
    check_error(request, {"ask for 4 ranks", "Set sequence_parallel_size: 4"});
    request.ring_degree = 1 << 30;  // the product needs 64 bits
    check_error(request, {"ask for 4294967296 ranks"});
    request.ulysses_degree = request.ring_degree = 1;
    request.window_size = 2;
    check_error(request, {"sequence_parallel_window_size: 2", "Set sequence_parallel_size"});
    request.window_size.reset();
    request.head_waves = 4;
    check_error(request, {"sequence_parallel_head_waves: 4", "Set sequence_parallel_size"});
  }
  PlanRequest request = request_of(8, 8, method_named("usp"), 28, 4);
  request.ulysses_degree = request.ring_degree = 1 << 17;
  check_error(request, {"is 17179869184, and sequence_parallel_size is 8"});
}

TEST_CASE("plan: windows") {
  PlanRequest request = request_of(8, 8, method_named("loongtrain"), 8, 2);
  request.ulysses_degree = 1;
  CHECK(make_parallel_plan(request).window_size == 8);  // one machine: one ring
  request.ranks_per_machine = 4;
  CHECK(make_parallel_plan(request).window_size == 4);
  request.ulysses_degree = 2;
  CHECK(make_parallel_plan(request).window_size == 2);
  request.window_size = 1;
  CHECK(make_parallel_plan(request).window_size == 1);
  request.window_size = 3;
  check_error(request, {"window_size: 3 does not divide the ring degree, 4", "1, 2, 4"});
  // Degrees are chosen to fit the window.
  request.ulysses_degree.reset();
  request.window_size = 8;
  CHECK(make_parallel_plan(request).ring_size == 8);
  request.method = method_named("usp");
  check_error(request, {"window_size: 8", "usp has no use for it", "loongtrain"});
  request.method = nullptr;
  check_error(request, {"sequence_parallel_mode: loongtrain"});
}

TEST_CASE("plan: head waves") {
  PlanRequest request = request_of(4, 4, method_named("ulysses"), 8, 2);
  request.head_waves = 2;
  CHECK(make_parallel_plan(request).head_waves == 2);
  request.head_waves = 3;
  check_error(request,
              {"head_waves: 3", "8 heads over 4 ranks", "from 1 to 2", "balanced-ulysses"});
  request.head_waves = 9;  // balanced-ulysses has fewer too
  CHECK(error_of(request).find("balanced-ulysses") == std::string::npos);
  request.method = method_named("balanced-ulysses");
  request.head_waves = 8;
  CHECK(make_parallel_plan(request).head_waves == 8);
  request.head_waves = 9;
  check_error(request, {"head_waves: 9", "from 1 to 8"});
  request = request_of(4, 4, method_named("dummy-head-ulysses"), 14, 2);
  request.head_waves = 4;  // 16 heads with padding
  CHECK(make_parallel_plan(request).head_waves == 4);
  request.head_waves = 5;
  check_error(request, {"from 1 to 4"});
  request.method = method_named("usp");
  request.ulysses_degree = 2;
  CHECK(make_parallel_plan(request).head_waves == 5);
  request.ulysses_degree = 1;
  check_error(request, {"needs a Ulysses degree above 1", "balanced-ulysses"});
  request = request_of(8, 8, method_named("usp"), 8, 2);
  request.ulysses_degree = 2;
  request.head_waves = 5;
  check_error(request, {"4 query heads that a rank has", "8 heads over a Ulysses degree of 2",
                        "from 1 to 4, or take balanced-ulysses"});
  request.ulysses_degree.reset();  // the message names the maximum over all degrees
  check_error(request, {"over a Ulysses degree of 2", "from 1 to 4"});
  // async-ulysses defaults to two waves; a requested single wave is kept.
  request = request_of(4, 4, method_named("async-ulysses"), 8, 2);
  CHECK(make_parallel_plan(request).head_waves == 2);
  CHECK(describe_method(make_parallel_plan(request)) == "async-ulysses");
  request.head_waves = 1;
  CHECK(make_parallel_plan(request).head_waves == 1);
  CHECK(describe_method(make_parallel_plan(request)) == "async-ulysses, heads in 1 wave");
  CHECK(make_parallel_plan(4, 4, method_named("async-ulysses"), 4, 2).head_waves ==
        1);  // one head per rank
  for (const Method* method : {method_named("xtuner-ulysses"), method_named("llama3"),
                               method_named("ring"), method_named("zigzag-ring")}) {
    request = request_of(2, 2, method, 14, 2);
    request.head_waves = 2;
    check_error(request,
                {"head_waves: 2", "ulysses, dummy-head-ulysses, async-ulysses, balanced-ulysses"});
  }
  request = request_of(4, 4, nullptr, 14, 2);
  request.head_waves = 7;
  const ParallelPlan chosen = make_parallel_plan(request);
  CHECK(chosen.head_waves == 7);
  CHECK(chosen.ulysses_size > 1);
  request.head_waves = 15;
  check_error(request, {"head_waves: 15", "at most 14"});
}

TEST_CASE("plan: errors say what was given, the limit and the remedy") {
  check_error(request_of(6, 4, nullptr, 8, 8),
              {"4 does not divide the number of processes, 6. Choose one of 1, 2, 3, 6"});
  const auto splits = [](const Method& method) {
    return method.refusal(4, plain_attention(14, 2, 64)).empty();
  };
  const std::string others = names_of(methods_that(splits)) + ".";
  check_error(request_of(4, 4, method_named("ulysses"), 14, 2),
              {"ulysses cannot split 14 attention heads (2 key-value heads) over 4 ranks",
               "Modes that can split them: dummy-head-ulysses, ", others.c_str()});
  check_error(request_of(3, 3, method_named("xtuner-ulysses"), 8, 2),
              {"3 slices", "head_dim, 64", "balanced-ulysses"});
  check_error(request_of(1, 8, nullptr, 8, 8), {"Set nproc_per_node: 8"});
  check_error(request_of(4, 0, nullptr, 8, 8), {"at least 1"});
  CHECK_THROWS_WITH_AS(method_named("rings"), doctest::Contains(names_of(all_methods()).c_str()),
                       UserError);
  for (const Method* method : all_methods()) CHECK(method_named(method->name) == method);
}

TEST_CASE("plan: serves layers whose numbers of heads differ, or says which mode can not") {
  PlanRequest request = request_of(4, 4, method_named("ulysses"), 8, 4);
  request.layers = {{plain_attention(8, 4, 64), 3}, {plain_attention(6, 2, 32), 1}};
  check_error(request, {"sequence_parallel_mode: ulysses", "6 attention heads"});
  request.method = method_named("xtuner-ulysses");
  check_error(request, {"xtuner-ulysses cuts the heads of this model's layers in different ways"});
  // Only degrees that serve both kinds of layers.
  request.method = method_named("usp");
  CHECK(make_parallel_plan(request).ulysses_size <= 2);
  request.method = nullptr;
  const ParallelPlan chosen = make_parallel_plan(request);
  for (const auto& [attention, count] : request.layers) {
    CHECK(can_split(*chosen.method, 4, attention));
  }
  // Equal layers count as one kind.
  PlanRequest one = request_of(4, 4, nullptr, 8, 4), many = one;
  many.layers = {{attention_of(one), 28}};
  CHECK(make_parallel_plan(many).reason == make_parallel_plan(one).reason);
}

}  // namespace
}  // namespace longspan
