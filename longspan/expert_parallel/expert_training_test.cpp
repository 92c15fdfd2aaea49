// Compares training with divided experts, under every sharding of their states, with training on
// one process, in fp64.
#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "longspan/attention/block_kernel.h"
#include "longspan/expert_parallel/expert_parallel.h"
#include "longspan/models/decoder.h"
#include "longspan/optim/adamw.h"
#include "longspan/optim/gradient_norm.h"
#include "longspan/optim/sharded_parameters.h"
#include "longspan/rows/batch.h"
#include "longspan/sequence_parallel/sequence_parallel.h"
#include "longspan/testing/expert_cases.h"
#include "longspan/testing/ranks.h"

namespace longspan {
namespace {

constexpr int kNumSteps = 2, kRowsOfStep = 12;  // divisible for 1, 2, 3 and 4 data-parallel groups
constexpr double kMaxNorm = 0.5;

std::vector<ParameterSource> sources_of(const ModelSpec& spec) {
  static std::mutex mutex;  // guards the random numbers
  const std::lock_guard lock(mutex);
  const std::vector<NamedTensor> leaves = testing::shared_out_leaves(spec);
  std::vector<ParameterSource> sources;
  for (const ParameterSpec& parameter : parameters_of(spec)) {
    const at::Tensor tensor = leaves[sources.size()].tensor.detach();
    sources.push_back(
        {parameter, at::kDouble, !is_buffer(parameter.role), [tensor] { return tensor.clone(); }});
  }
  return sources;
}

Batch row_of(const ModelSpec& spec, int number) {
  const int64_t T = 9 + number % 4;
  Batch batch;
  batch.packing = Packing::from_lengths({4, T - 4});
  const auto count = at::arange(T, at::kLong);
  batch.tokens_T = (count * 7 + number * 13).remainder(spec.vocab_size);
  batch.labels_T = (count * 5 + number * 11 + 1).remainder(spec.vocab_size);
  batch.labels_T[3].fill_(kIgnoreLabel);
  batch.positions_T = at::cat({at::arange(4, at::kLong), at::arange(T - 4, at::kLong)});
  batch.documents_T = count.ge(4).to(at::kLong);
  return batch;
}

struct Trained {
  std::vector<double> losses, norms;
  std::map<std::string, at::Tensor> weights;
};

Trained train_alone(const ModelSpec& spec) {
  std::vector<NamedTensor> parameters;
  for (const ParameterSource& source : sources_of(spec)) {
    parameters.push_back({source.spec.name, source.make().set_requires_grad(source.trained)});
  }
  const auto attention = make_local(cpu_block_kernel());
  Decoder model(spec, parameters, *attention, {});
  AdamW optimizer(unsharded_parameters(parameters, ParameterTable(parameters_of(spec))),
                  {.epsilon = 1e-2, .weight_decay = 0.1});
  Trained result;
  for (int step = 0; step < kNumSteps; ++step) {
    double loss = 0;
    for (int i = 0; i < kRowsOfStep; ++i) {
      const at::Tensor own =
          model.negative_log_likelihood_sum(row_of(spec, kRowsOfStep * step + i), 0.01) * 0.01;
      own.backward();
      loss += own.item<double>();
    }
    result.losses.push_back(loss);
    result.norms.push_back(global_gradient_norm(parameters));
    clip_gradients(parameters, result.norms.back(), kMaxNorm);
    optimizer.step(0.01);
    optimizer.zero_grad();
  }
  for (const auto& [name, tensor] : parameters) result.weights[name] = tensor.detach();
  return result;
}

Trained train_together(const ModelSpec& spec, const ParallelPlan& plan, int stage, bool offloads) {
  Trained result;
  testing::run_ranks(plan, [&](const Mesh& mesh) {
    ShardedParameters sharded(sources_of(spec), {.stage = stage,
                                                 .shard = mesh.shard,
                                                 .replicas = mesh.replicas,
                                                 .experts = mesh.experts,
                                                 .expert_shard = mesh.expert_shard,
                                                 .expert_replicas = mesh.expert_replicas,
                                                 .offload_optimizer = offloads,
                                                 .offload_params = offloads && stage == 3,
                                                 .compute_dtype = at::kDouble,
                                                 .chunk_bytes = 2000});
    const auto attention = make_attention(plan, mesh, cpu_block_kernel());
    ExpertParallel experts(mesh.experts);
    Decoder model(spec, sharded.parameters(), *attention,
                  {.expert_exchange = &experts, .parameter_hooks = &sharded});
    AdamW optimizer(sharded.shards(), {.epsilon = 1e-2, .weight_decay = 0.1});
    Trained mine;
    for (int step = 0; step < kNumSteps; ++step) {
      at::Tensor loss = at::zeros({1}, at::kDouble);
      for (int i = mesh.data.rank(); i < kRowsOfStep; i += mesh.data.size()) {
        const Batch row = row_of(spec, kRowsOfStep * step + i);
        const Batch local = shard(row, attention->token_order(row.packing));
        if (i < mesh.data.size()) {
          const c10::NoGradGuard no_grad;  // an evaluation in between
          model.token_logprobs(local);
        }
        const at::Tensor own = model.negative_log_likelihood_sum(local, 0.01) * 0.01;
        own.backward();
        sharded.end_backward();
        loss += own.detach();
      }
      mesh.world.sum_(loss);
      sharded.finish_gradients();
      mine.losses.push_back(loss.item<double>());
      mine.norms.push_back(sharded.gradient_norm());
      sharded.scale_gradients(std::min(1.0, kMaxNorm / (mine.norms.back() + 1e-6)));
      optimizer.step(0.01);
      sharded.drop_gradients();
      sharded.publish();
    }
    sharded.for_each_whole([&](const NamedTensor& parameter) {
      mine.weights[parameter.name] = parameter.tensor.clone();
    });
    if (mesh.world.rank() == plan.world_size - 1) result = mine;
  });
  return result;
}

ParallelPlan plan_of(int world, int sequence, int experts, int shard_size) {
  ParallelPlan plan =
      make_parallel_plan(world, sequence, sequence > 1 ? method_named("ring") : nullptr, 2, 1);
  plan.expert_parallel_size = experts;
  plan.shard_size = shard_size;
  return plan;
}

TEST_CASE("expert parallelism: training in any layout is that of one process") {
  const ModelSpec spec = testing::shared_out_model();
  const Trained alone = train_alone(spec);
  struct Layout {
    int world, sequence, experts, shard_size, stage;
    bool offloads = false;
  };
  for (const Layout& layout : std::vector<Layout>{{2, 1, 2, 1, 0},
                                                  {3, 1, 3, 3, 3},
                                                  {2, 2, 2, 2, 3, true},
                                                  {4, 1, 2, 1, 0, true},
                                                  {4, 2, 4, 1, 0},
                                                  {4, 2, 2, 4, 1},
                                                  {4, 1, 2, 4, 2},
                                                  {4, 1, 2, 4, 3},
                                                  {4, 4, 4, 4, 3},
                                                  {4, 1, 2, 2, 3}}) {
    CAPTURE(layout.world);
    CAPTURE(layout.sequence);
    CAPTURE(layout.experts);
    CAPTURE(layout.shard_size);
    CAPTURE(layout.stage);
    const Trained together = train_together(
        spec, plan_of(layout.world, layout.sequence, layout.experts, layout.shard_size),
        layout.stage, layout.offloads);
    for (int step = 0; step < kNumSteps; ++step) {
      CAPTURE(step);
      CHECK(together.losses[step] == doctest::Approx(alone.losses[step]).epsilon(1e-11));
      CHECK(together.norms[step] == doctest::Approx(alone.norms[step]).epsilon(1e-11));
    }
    REQUIRE(together.weights.size() == alone.weights.size());
    for (const auto& [name, tensor] : alone.weights) {
      INFO(name);
      CHECK(at::allclose(together.weights.at(name), tensor, 0, 1e-11));
    }
  }
}

}  // namespace
}  // namespace longspan
