// Muon with sharded matrices or offloaded states gives the same bits as one process with whole
// ones. tests/parity/test_optim.py compares the single process to torch.
#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <cmath>
#include <map>
#include <mutex>

#include "longspan/optim/optimizer.h"
#include "longspan/optim/sharded_parameters.h"
#include "longspan/session/model_update.h"
#include "longspan/settings/optimization_settings.h"
#include "longspan/testing/parameter_specs.h"
#include "longspan/testing/ranks.h"

namespace longspan {
namespace {

constexpr int kNumSteps = 4;

using Role = ParameterRole;

/// No number of ranks divides these sizes.
const std::vector<ParameterSpec>& specs() {
  static const std::vector<ParameterSpec> all = {
      parameter_spec("embedding", {11, 12}, Role::kEmbedding, kEmbeddingUnit),
      parameter_spec("0.q", {13, 12}, Role::kProjection, 1),
      parameter_spec("0.q.bias", {13}, Role::kBias, 1),
      parameter_spec("0.q.lora_A", {3, 12}, Role::kLoraA, 1),
      parameter_spec("0.up", {31, 12}, Role::kProjection, 1),
      parameter_spec("1.down", {12, 31}, Role::kProjection, 2),
      parameter_spec("1.norm", {12}, Role::kNorm, 2),
      parameter_spec("norm", {12}, Role::kNorm, kAlwaysThere),
      parameter_spec("head", {11, 12}, Role::kHead, 3)};
  return all;
}

bool is_matrix_of_layer(const ParameterSpec& spec) {
  return spec.role == Role::kProjection || spec.role == Role::kLoraA;
}

/// Returns the same numbers at every call. Step -1: the initial values.
at::Tensor numbers(size_t parameter, int step) {
  const auto& shape = specs()[parameter].shape;
  const int64_t n = c10::multiply_integers(shape);
  const at::Tensor x = at::arange(n, at::kFloat) * 0.37f + static_cast<float>(parameter) +
                       2.1f * static_cast<float>(step + 1);
  return (x.sin() * 0.1).view(shape);
}

OptimizationSettings config_of() {
  OptimizationSettings config;
  config.optim = "muon";
  config.weight_decay = 0.1;
  return config;
}

using Weights = std::map<std::string, at::Tensor>;

Weights trained_whole() {
  Weights weights;
  testing::run_ranks(1, [&](const Mesh&) {
    std::vector<NamedTensor> parameters;
    for (size_t i = 0; i < specs().size(); ++i) {
      parameters.push_back({specs()[i].name, numbers(i, -1).set_requires_grad(true)});
    }
    ModelUpdate update(parameters, ParameterTable(specs()), /*sharded=*/nullptr, /*sums=*/nullptr,
                       config_of(), /*offload=*/false);
    for (int step = 0; step < kNumSteps; ++step) {
      for (size_t i = 0; i < parameters.size(); ++i) {
        parameters[i].tensor.mutable_grad() = numbers(i, step);
      }
      update.step(0.05);
    }
    for (const NamedTensor& parameter : parameters) {
      weights[parameter.name] = parameter.tensor.detach().clone();
    }
  });
  return weights;
}

/// The whole state of a run, by parameter.
struct States {
  std::mutex mutex;
  std::map<std::string, std::map<std::string, at::Tensor>> tensors;
  std::map<std::string, int64_t> num_steps;
};

struct Layout {
  int size, stage;
  bool offload_optimizer, offload_params;
};

/// Trains steps [from, until). Starts with the state in `states` and leaves the final state there.
Weights trained_sharded(const Layout& layout, int from, int until, const Weights& start,
                        States& states) {
  Weights weights;
  States ended;
  testing::run_ranks(layout.size, [&](const Mesh& mesh) {
    std::vector<ParameterSource> sources;
    for (size_t i = 0; i < specs().size(); ++i) {
      const ParameterSpec& spec = specs()[i];
      const at::Tensor values = start.empty() ? numbers(i, -1) : start.at(spec.name);
      sources.push_back({spec, at::kFloat, true, [values] { return values.clone(); }});
    }
    ShardedParameters sharded(sources, {.stage = layout.stage,
                                        .shard = mesh.world,
                                        .replicas = Group(),
                                        .offload_optimizer = layout.offload_optimizer,
                                        .offload_params = layout.offload_params});
    ModelUpdate update(sharded.parameters(), ParameterTable(specs()), &sharded, /*sums=*/nullptr,
                       config_of(), layout.offload_optimizer);
    const std::vector<StateSource> sources_of_state = update.optimizer().state();
    for (size_t i = 0; i < sources_of_state.size() && from > 0; ++i) {
      const StateSource& source = sources_of_state[i];
      StateShard shard{
          source.parameter, source.begin, source.end, states.num_steps.at(source.parameter), {}};
      for (const auto& [what, whole] : states.tensors.at(source.parameter)) {
        shard.tensors[what] = whole.narrow(0, source.begin, source.end - source.begin);
      }
      update.optimizer().load_state(i, shard);
    }
    for (int step = from; step < until; ++step) {
      for (const ParameterShard& shard : update.shards()) {
        for (size_t i = 0; i < specs().size(); ++i) {
          if (specs()[i].name != shard.parameter) continue;
          at::Tensor values = shard.values;
          values.mutable_grad() =
              numbers(i, step).flatten().narrow(0, shard.begin, shard.end - shard.begin);
        }
      }
      update.step(0.05);
    }
    Weights mine;
    sharded.for_each_whole(
        [&](const NamedTensor& parameter) { mine[parameter.name] = parameter.tensor.clone(); });
    const std::lock_guard lock(ended.mutex);
    if (mesh.world.rank() == layout.size - 1) weights = mine;
    for (const StateSource& source : update.optimizer().state()) {
      const StateShard shard = source.make();
      ended.num_steps[shard.parameter] = shard.num_steps;
      for (const auto& [what, values] : shard.tensors) {
        at::Tensor& whole = ended.tensors[shard.parameter][what];
        if (!whole.defined()) whole = at::zeros({mine.at(shard.parameter).numel()});
        whole.narrow(0, shard.begin, shard.end - shard.begin).copy_(values);
      }
    }
  });
  states.tensors = std::move(ended.tensors);
  states.num_steps = std::move(ended.num_steps);
  return weights;
}

constexpr Layout kLayouts[] = {{1, 0, true, false}, {1, 3, true, true},   {2, 1, false, false},
                               {2, 2, true, false}, {3, 2, false, false}, {3, 3, false, false},
                               {4, 3, true, true},  {4, 3, false, true}};

void check_same(const Weights& ours, const Weights& theirs) {
  REQUIRE(ours.size() == theirs.size());
  for (const auto& [name, values] : theirs) {
    INFO(name);
    CHECK(at::equal(ours.at(name), values));
  }
}

}  // namespace

TEST_CASE("muon: sharded and offloaded states are the same run to the bit, and go on as any") {
  const Weights whole = trained_whole();
  for (size_t i = 0; i < specs().size(); ++i) {
    CHECK(!at::equal(whole.at(specs()[i].name), numbers(i, -1)));
  }
  for (size_t l = 0; l < std::size(kLayouts); ++l) {
    CAPTURE(l);
    States states;
    check_same(trained_sharded(kLayouts[l], 0, kNumSteps, {}, states), whole);
    // Two steps in one layout, two in the next.
    States halves;
    const Weights start = trained_sharded(kLayouts[l], 0, 2, {}, halves);
    const Layout& next = kLayouts[(l + 3) % std::size(kLayouts)];
    check_same(trained_sharded(next, 2, kNumSteps, start, halves), whole);
    for (const ParameterSpec& spec : specs()) {
      INFO(spec.name);
      const auto& tensors = states.tensors.at(spec.name);
      CHECK(tensors.contains("momentum_buffer") == is_matrix_of_layer(spec));
      CHECK(tensors.size() == (is_matrix_of_layer(spec) ? 1 : 2));
      for (const auto& [what, values] : tensors) {
        CHECK(at::equal(values, halves.tensors.at(spec.name).at(what)));
      }
    }
  }
}

TEST_CASE("muon: what moves a matrix has nearly equal singular values") {
  const at::Tensor start = at::zeros({40, 24});
  const std::vector<NamedTensor> parameters = {{"up", start.clone().set_requires_grad(true)}};
  ModelUpdate update(parameters, testing::projections(parameters), /*sharded=*/nullptr,
                     /*sums=*/nullptr, config_of(), /*offload=*/false);
  at::manual_seed(4);
  parameters[0].tensor.mutable_grad() = at::randn({40, 24}) * 1e-3;
  update.step(1.0);
  // 1 within the iteration's slack, times sqrt(40 / 24).
  const at::Tensor singular =
      std::get<1>(at::linalg_svd(parameters[0].tensor.detach(), /*full_matrices=*/false)) /
      std::sqrt(40.0 / 24.0);
  CHECK(singular.max().item<double>() < 1.3);
  CHECK(singular.min().item<double>() > 0.5);
}

}  // namespace longspan
