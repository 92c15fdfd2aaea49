// Checks of the description of every optimizer in the register.
#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "longspan/base/user_error.h"
#include "longspan/memory/counting_allocator.h"
#include "longspan/optim/optimizer_job.h"
#include "longspan/optim/sharded_parameters.h"
#include "longspan/registers/update_rule.h"
#include "longspan/session/model_update.h"
#include "longspan/settings/optimization_settings.h"
#include "longspan/testing/parameter_specs.h"
#include "longspan/testing/ranks.h"

namespace longspan {
namespace {

TEST_CASE("optimizers: names are found, are one optimizer's each, and nothing else is one") {
  std::set<std::string_view> names;
  for (const UpdateRule* rule : all_update_rules()) {
    CHECK(!rule->names.empty());
    CHECK(!rule->help.empty());
    for (const std::string_view name : rule->names) {
      CHECK(names.insert(name).second);
      CHECK(&update_rule_named(name) == rule);
    }
  }
  for (const char* other : {"", "adam", "AdamW"}) {
    CHECK_THROWS_WITH_AS(update_rule_named(other),
                         doctest::Contains("the optimizers are: adamw_torch, "), UserError);
  }
}

TEST_CASE("optimizers: every one moves what has a gradient, and says what it keeps") {
  for (const UpdateRule* rule : all_update_rules()) {
    const std::string name(rule->names.front());
    CAPTURE(name);
    OptimizationSettings config;
    config.optim = name;
    const std::vector<NamedTensor> parameters = {
        {"model.layers.0.mlp.up_proj.weight", at::ones({64, 80}).set_requires_grad(true)},
        {"model.layers.0.mlp.gate_proj.weight", at::ones({64, 80}).set_requires_grad(true)},
        {"model.norm.weight", at::ones({80}).set_requires_grad(true)}};
    ParameterTable specs = testing::projections(parameters);
    specs.add(parameter_spec("model.norm.weight", {80}, ParameterRole::kNorm, kAlwaysThere));
    ModelUpdate update(parameters, specs, /*sharded=*/nullptr, /*sums=*/nullptr, config,
                       /*offload=*/false);
    parameters[0].tensor.mutable_grad() = at::randn({64, 80});
    parameters[2].tensor.mutable_grad() = at::randn({80});
    update.step(0.1);
    CHECK(!at::equal(parameters[0].tensor, at::ones({64, 80})));
    CHECK(at::equal(parameters[1].tensor, at::ones({64, 80})));
    CHECK(!at::equal(parameters[2].tensor, at::ones({80})));
    int64_t saved = 0;
    for (const NamedTensor& parameter : parameters) {
      saved += rule->saved_bytes({specs.of(parameter.name), 4, true});
    }
    int64_t in_files = 0;
    for (const StateSource& source : update.optimizer().state()) {
      for (const auto& [what, dtype] : source.dtypes) {
        in_files += (source.end - source.begin) * static_cast<int64_t>(c10::elementSize(dtype));
      }
    }
    CHECK(saved == in_files);
  }
}

TEST_CASE("optimizers: LoRA+ multiplies the learning rate of second matrices and vectors") {
  for (const UpdateRule* rule : all_update_rules()) {
    const std::string name(rule->names.front());
    CAPTURE(name);
    ParameterTable specs;
    for (const auto& [role, shape] :
         {std::pair{ParameterRole::kLoraA, std::vector<int64_t>{64, 80}},
          {ParameterRole::kLoraB, {80, 64}},
          {ParameterRole::kValueHead, {1, 80}},
          {ParameterRole::kValueHeadBias, {1}}}) {
      specs.add(parameter_spec(fmt::format("{}", static_cast<int>(role)), shape, role, 1));
    }
    const auto updated = [&](double learning_rate, std::optional<double> ratio) {
      OptimizationSettings config;
      config.optim = name;
      config.weight_decay = 0.1;
      config.loraplus_lr_ratio = ratio;
      std::vector<NamedTensor> parameters;
      for (const ParameterRole role : {ParameterRole::kLoraA, ParameterRole::kLoraB,
                                       ParameterRole::kValueHead, ParameterRole::kValueHeadBias}) {
        const ParameterSpec& spec = specs.of(fmt::format("{}", static_cast<int>(role)));
        const at::Tensor values = at::ones(spec.shape).set_requires_grad(true);
        values.mutable_grad() = at::sin(at::arange(1, values.numel() + 1).view(spec.shape));
        parameters.push_back({spec.name, values});
      }
      ModelUpdate update(parameters, specs, /*sharded=*/nullptr, /*sums=*/nullptr, config,
                         /*offload=*/false);
      update.step(learning_rate);
      return parameters;
    };
    const std::vector<NamedTensor> plain = updated(0.125, {}), fast = updated(0.5, {}),
                                   both = updated(0.125, 4.0);
    for (const size_t i : {0, 2}) CHECK(at::equal(both[i].tensor, plain[i].tensor));
    for (const size_t i : {1, 3}) CHECK(at::equal(both[i].tensor, fast[i].tensor));
    for (const size_t i : {1, 3}) CHECK_FALSE(at::equal(both[i].tensor, plain[i].tensor));
  }
}

TEST_CASE("optimizers: the states of a parameter take the memory that is said") {
  const std::vector<ParameterSpec> specs = {
      parameter_spec("matrix", {96, 64}, ParameterRole::kProjection, 1),
      parameter_spec("flat matrix", {50, 131}, ParameterRole::kProjection, 1),
      parameter_spec("embedding", {101, 48}, ParameterRole::kEmbedding, kEmbeddingUnit),
      parameter_spec("norm", {4200}, ParameterRole::kNorm, 1)};
  const OptimizationSettings config{};
  for (const UpdateRule* rule : all_update_rules()) {
    const std::string name(rule->names.front());
    CAPTURE(name);
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      for (const ParameterSpec& spec : specs) {
        CAPTURE(c10::toString(dtype));
        CAPTURE(spec.name);
        const std::vector<ParameterShard> shards = {
            {spec.name, 0, spec.num_elements(), at::ones(spec.shape, dtype).set_requires_grad(true),
             spec}};
        const AllocationCounter memory(AllocationCounter::Of::kThisThread);
        const std::unique_ptr<Optimizer> optimizer =
            rule->make({config, shards, /*allocate=*/{}, /*over_whole_matrices=*/{}});
        const HeldParameter trained{spec, static_cast<int64_t>(c10::elementSize(dtype)), true};
        const int64_t said = rule->state_bytes(trained);
        // Not included: the step count, and the scales, two fp32 per block of 256 elements with two
        // bytes each.
        constexpr int64_t kCount = 64;
        CHECK(memory.live_bytes() >= said);
        CHECK(memory.live_bytes() <= said + said / 50 + kCount);
      }
    }
  }
}

TEST_CASE("optimizers: a matrix that ranks divide is made whole of everyone's numbers") {
  std::vector<ParameterSource> sources;
  int64_t number = 0;
  using Role = ParameterRole;
  for (const ParameterSpec& spec :
       {parameter_spec("embedding", {10, 12}, Role::kEmbedding, kEmbeddingUnit),
        parameter_spec("0.up", {31, 12}, Role::kProjection, 1),
        parameter_spec("0.norm", {12}, Role::kNorm, 1),
        parameter_spec("1.up", {12, 97}, Role::kProjection, 2),
        parameter_spec("1.down", {5, 7}, Role::kProjection, 2)}) {
    const at::Tensor values =
        at::arange(number, number + spec.num_elements()).to(at::kFloat).view(spec.shape);
    number += values.numel();
    sources.push_back({spec, at::kFloat, true, [values] { return values.clone(); }});
  }
  const auto is_wanted = [](const ParameterSpec& spec) { return spec.role == Role::kProjection; };
  for (const int size : {1, 2, 3}) {
    for (const int stage : {1, 2, 3}) {
      for (const bool offloads : {false, true}) {
        CAPTURE(size);
        CAPTURE(stage);
        CAPTURE(offloads);
        std::vector<int64_t> num_whole(size), num_wrong(size);
        testing::run_ranks(size, [&](const Mesh& mesh) {
          ShardedParameters sharded(sources, {.stage = stage,
                                              .shard = mesh.world,
                                              .replicas = Group(),
                                              .offload_optimizer = offloads,
                                              .offload_params = offloads && stage == 3});
          const std::vector<ParameterShard> shards = sharded.shards();
          const auto twice = [&](size_t i) { return shards.at(i).values * 2; };
          const auto compare = [&](size_t i, const at::Tensor& whole) {
            ++num_whole[mesh.world.rank()];
            for (const ParameterSource& source : sources) {
              if (source.spec.name != shards[i].parameter) continue;
              num_wrong[mesh.world.rank()] += !at::equal(whole, source.make() * 2);
            }
          };
          sharded.over_wholes(is_wanted, {.dtype = at::kFloat, .make = twice, .use = compare});
        });
        for (const int64_t wrong : num_wrong) CHECK(wrong == 0);
        int64_t all = 0;
        for (const int64_t mine : num_whole) all += mine;
        CHECK(all >= 3);  // on every rank that holds a shard
        CHECK(all <= 3 + 3 * (size - 1));
      }
    }
  }
}

}  // namespace
}  // namespace longspan
