// Compares training with sharded states to training with whole ones in fp64. There, rounding is the
// only legitimate difference.
#include "longspan/optim/sharded_parameters.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "longspan/attention/block_kernel.h"
#include "longspan/memory/counting_allocator.h"
#include "longspan/memory/host_memory.h"
#include "longspan/models/lora.h"
#include "longspan/objectives/document_scores.h"
#include "longspan/optim/adamw.h"
#include "longspan/optim/gradient_norm.h"
#include "longspan/sequence_parallel/sequence_parallel.h"
#include "longspan/testing/ranks.h"
#include "longspan/testing/small_model.h"

namespace longspan {
namespace {

constexpr double kMaxNorm = 0.5;
constexpr int kNumSteps = 4;

enum class Loss { kNll, kLogprobs };

/// The trained parameters and how they are computed.
struct Problem {
  bool tied = false, checkpointing = true, lora = false, freeze = false;
  Loss loss = Loss::kNll;
};

testing::SmallModel small_config(bool tied) {
  testing::SmallModel config;
  config.model_type = "qwen2";
  config.vocab_size = 61;
  config.hidden_size = 24;
  config.intermediate_size = 36;
  config.num_layers = 3;
  config.num_heads = 4;
  config.num_kv_heads = 2;
  config.head_dim = 6;
  config.qkv_bias = true;
  config.tied_head = tied;
  config.padding_token = 14;
  return config;
}

bool is_trained(const Problem& problem, const ParameterSpec& parameter) {
  if (problem.lora) return is_lora(parameter.role);
  if (problem.freeze) return parameter.layer == 1;
  return true;
}

std::vector<ParameterSource> sources_of(const Problem& problem) {
  static std::mutex mutex;  // guards the random numbers
  const std::lock_guard lock(mutex);
  const testing::SmallModel config = small_config(problem.tied);
  at::manual_seed(3);
  const ModelSpec model = config.spec();
  std::vector<ParameterSource> sources;
  const auto add = [&](const ParameterSpec& parameter, const at::Tensor& tensor) {
    sources.push_back({parameter, at::kDouble, is_trained(problem, parameter),
                       [tensor] { return tensor.clone(); }});
  };
  for (const ParameterSpec& parameter : parameters_of(model)) {
    at::Tensor tensor = at::randn(parameter.shape, at::kDouble) * 0.3;
    if (parameter.role == ParameterRole::kNorm) tensor = tensor + 1;
    add(parameter, tensor);
  }
  if (problem.lora) {
    const LoraShape shape{.r = 2, .alpha = 4, .modules = {"q_proj", "v_proj", "down_proj"}};
    const ParameterTable specs(lora_parameters_of(model, shape));
    for (const auto& [name, tensor] : new_lora_parameters(model, shape, 5)) {
      add(specs.of(name), tensor.to(at::kDouble) + 0.1);
    }
  }
  return sources;
}

/// Returns row `i` of the run.
Batch row_of(int i) {
  const int64_t T = 9 + i % 4;
  Batch batch;
  batch.packing = Packing::from_lengths({4, T - 4});
  const auto count = at::arange(T, at::kLong);
  batch.tokens_T = (count * 7 + i * 13).remainder(61);
  batch.labels_T = (count * 5 + i * 11 + 1).remainder(61);
  batch.labels_T[3].fill_(kIgnoreLabel);
  batch.positions_T = at::cat({at::arange(4, at::kLong), at::arange(T - 4, at::kLong)});
  batch.documents_T = count.ge(4).to(at::kLong);
  return batch;
}

at::Tensor loss_of(const Problem& problem, Decoder& model, const Batch& row) {
  if (problem.loss == Loss::kNll) return model.negative_log_likelihood_sum(row, 1 / 40.0) / 40.0;
  return (model.token_logprobs(row).exp().sum() - model.token_logprobs(row).sum()) / 40.0;
}

struct Trained {
  std::vector<double> losses, norms;
  std::map<std::string, at::Tensor> weights;
};

DecoderOptions decoder_options(const Problem& problem) {
  return {.gradient_checkpointing = problem.checkpointing, .lora_scale = 0.7};
}

/// Four rows per step, one after the other.
Trained train_whole(const Problem& problem) {
  std::vector<NamedTensor> parameters;
  ParameterTable specs;
  for (const ParameterSource& source : sources_of(problem)) {
    parameters.push_back({source.spec.name, source.make().set_requires_grad(source.trained)});
    specs.add(source.spec);
  }
  const auto attention = make_local(cpu_block_kernel());
  Decoder model(small_config(problem.tied).spec(), parameters, *attention,
                decoder_options(problem));
  AdamW optimizer(unsharded_parameters(parameters, specs), {.weight_decay = 0.1});
  Trained result;
  for (int step = 0; step < kNumSteps; ++step) {
    double loss = 0;
    for (int i = 0; i < 4; ++i) {
      const at::Tensor contribution = loss_of(problem, model, row_of(4 * step + i));
      contribution.backward();
      loss += contribution.item<double>();
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

/// The same rows, shared out over the data-parallel groups.
Trained train_sharded(const Problem& problem, const ParallelPlan& plan, int stage,
                      bool offload_optimizer = false, bool offload_params = false) {
  Trained result;
  testing::run_ranks(plan, [&](const Mesh& mesh) {
    ShardedParameters sharded(sources_of(problem), {.stage = stage,
                                                    .shard = mesh.shard,
                                                    .replicas = mesh.replicas,
                                                    .offload_optimizer = offload_optimizer,
                                                    .offload_params = offload_params,
                                                    .compute_dtype = at::kDouble,
                                                    .chunk_bytes = 2000});
    const auto attention = make_attention(plan, mesh, cpu_block_kernel());
    DecoderOptions options = decoder_options(problem);
    options.parameter_hooks = &sharded;
    Decoder model(small_config(problem.tied).spec(), sharded.parameters(), *attention, options);
    AdamW optimizer(sharded.shards(), {.weight_decay = 0.1});
    Trained mine;
    for (int step = 0; step < kNumSteps; ++step) {
      at::Tensor loss = at::zeros({1}, at::kDouble);
      for (int i = mesh.data.rank(); i < 4; i += mesh.data.size()) {
        const Batch row = row_of(4 * step + i);
        const Batch local = shard(row, attention->token_order(row.packing));
        {
          const c10::NoGradGuard no_grad;  // an evaluation in between
          model.token_logprobs(local);
        }
        const at::Tensor contribution = loss_of(problem, model, local);
        contribution.backward();
        sharded.end_backward();
        loss += contribution.detach();
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

void check_equal(const Trained& ours, const Trained& theirs) {
  REQUIRE(ours.losses.size() == theirs.losses.size());
  for (size_t i = 0; i < ours.losses.size(); ++i) {
    CAPTURE(i);
    CHECK(ours.losses[i] == doctest::Approx(theirs.losses[i]).epsilon(1e-9));
    CHECK(ours.norms[i] == doctest::Approx(theirs.norms[i]).epsilon(1e-9));
  }
  REQUIRE(ours.weights.size() == theirs.weights.size());
  for (const auto& [name, tensor] : theirs.weights) {
    INFO(name);
    CHECK(at::allclose(ours.weights.at(name), tensor, 1e-7, 1e-9));
  }
}

ParallelPlan plan_of(int world, int sequence, int shard_size) {
  PlanRequest request;
  request.world_size = world;
  request.sequence_size = sequence;
  request.zero_stage = 1;
  request.shard_size = shard_size;
  request.num_heads = 4;
  request.num_kv_heads = 2;
  request.head_dim = 6;
  return make_parallel_plan(request);
}

TEST_CASE("sharded parameters: with stage 3 a rank reads its own numbers alone") {
  std::atomic<int64_t> num_read{0}, num_needed{0};
  testing::run_ranks(4, [&](const Mesh& mesh) {
    std::vector<ParameterSource> sources = sources_of({});
    for (ParameterSource& source : sources) {
      const at::Tensor values = source.make();
      const int64_t holders = source.spec.unit == kAlwaysThere ? 4 : 1;
      if (mesh.world.rank() == 0) num_needed += holders * values.numel();
      const auto run = [&num_read, values](int64_t begin, int64_t end) {
        num_read += end - begin;
        return values.flatten().slice(0, begin, end);
      };
      source.make = {[run, values] { return run(0, values.numel()).view(values.sizes()); }, run};
    }
    const ShardedParameters sharded(sources, {.stage = 3, .shard = mesh.world, .replicas = {}});
  });
  CHECK(num_read == num_needed);
}

}  // namespace

TEST_CASE("sharding: every stage, on 4 ranks and in hybrid form, equals one process") {
  const Trained whole = train_whole({});
  for (const auto& [sequence, shard_size] :
       {std::pair{1, 4}, std::pair{2, 4}, std::pair{2, 2}, std::pair{1, 1}, std::pair{4, 2}}) {
    for (const int stage : {0, 1, 2, 3}) {
      if ((shard_size == 1) != (stage == 0)) continue;
      CAPTURE(sequence);
      CAPTURE(shard_size);
      CAPTURE(stage);
      check_equal(train_sharded({}, plan_of(4, sequence, shard_size), stage), whole);
    }
  }
}

TEST_CASE("sharding: offloading changes nothing") {
  const Trained whole = train_whole({});
  for (const int stage : {0, 1, 2, 3}) {
    CAPTURE(stage);
    check_equal(train_sharded({}, plan_of(4, 2, stage == 0 ? 1 : 4), stage, true), whole);
  }
  check_equal(train_sharded({}, plan_of(4, 2, 4), 3, true, true), whole);
  check_equal(train_sharded({}, plan_of(4, 2, 4), 3, false, true), whole);
  check_equal(train_sharded({}, plan_of(1, 1, 1), 3, true, true), whole);
  check_equal(train_sharded({}, plan_of(1, 1, 1), 3), whole);
}

TEST_CASE("sharding: tied heads, kept activations, both losses, adapters, frozen layers") {
  for (const Problem& problem :
       {Problem{.tied = true}, Problem{.tied = true, .loss = Loss::kLogprobs},
        Problem{.checkpointing = false}, Problem{.loss = Loss::kLogprobs},
        Problem{.tied = true, .checkpointing = false, .loss = Loss::kLogprobs},
        Problem{.lora = true}, Problem{.tied = true, .checkpointing = false, .lora = true},
        Problem{.freeze = true}, Problem{.checkpointing = false, .freeze = true}}) {
    CAPTURE(problem.tied);
    CAPTURE(problem.checkpointing);
    CAPTURE(problem.lora);
    CAPTURE(problem.freeze);
    CAPTURE(static_cast<int>(problem.loss));
    const Trained whole = train_whole(problem);
    for (const int stage : {2, 3}) {
      CAPTURE(stage);
      check_equal(train_sharded(problem, plan_of(2, 1, 2), stage), whole);
      check_equal(train_sharded(problem, plan_of(2, 1, 2), stage, true, stage == 3), whole);
    }
  }
}

/// Live bytes at rest. The buffer of a finished sum is freed by a group's thread a moment after its
/// notification.
int64_t settled_bytes(const AllocationCounter& counter) {
  int64_t least = counter.live_bytes();
  for (int attempt = 0; attempt < 20; ++attempt) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    least = std::min(least, counter.live_bytes());
  }
  return least;
}

TEST_CASE("sharding: on 4 ranks a rank holds a quarter of the states, offloaded nearly nothing") {
  testing::SmallModel config = small_config(/*tied=*/false);
  config.hidden_size = 96;
  config.intermediate_size = 256;
  config.num_layers = 6;
  config.num_heads = 8;
  config.num_kv_heads = 4;
  config.head_dim = 12;
  config.vocab_size = 300;
  std::vector<ParameterSource> sources;
  const std::vector<ParameterSpec> all = parameters_of(config.spec());
  for (const ParameterSpec& parameter : all) {
    sources.push_back({parameter, at::kFloat, /*trained=*/true,
                       [shape = parameter.shape] { return at::full(shape, 0.01, at::kFloat); }});
  }
  int64_t loading_peak = 0;
  // Live bytes when all states exist: after the second step's backward.
  const auto live_bytes = [&](const Mesh& mesh, std::optional<ShardingOptions> options) {
    const AllocationCounter counter(AllocationCounter::Of::kThisThread);
    const auto attention = make_local(cpu_block_kernel());
    std::vector<NamedTensor> parameters;
    std::unique_ptr<ShardedParameters> sharded;
    AllocateLike allocate;
    if (options) {
      sharded = std::make_unique<ShardedParameters>(sources, *options);
      if (mesh.world.rank() == 0) loading_peak = counter.peak_bytes();
      parameters = sharded->parameters();
      if (options->offload_optimizer) allocate = empty_on_host_like;
    } else {
      for (const ParameterSource& source : sources) {
        parameters.push_back({source.spec.name, source.make().set_requires_grad(true)});
      }
    }
    Decoder model(config.spec(), parameters, *attention, {.parameter_hooks = sharded.get()});
    AdamW optimizer(
        sharded ? sharded->shards() : unsharded_parameters(parameters, ParameterTable(all)), {},
        allocate);
    int64_t live = 0;
    for (int step = 0; step < 2; ++step) {
      model.negative_log_likelihood_sum(row_of(step)).backward();
      if (sharded) {
        sharded->end_backward();
        sharded->finish_gradients();
      }
      live = settled_bytes(counter);
      optimizer.step(1e-3);
      if (sharded) {
        sharded->drop_gradients();
        sharded->publish();
      } else {
        optimizer.zero_grad();
      }
    }
    return live;
  };
  const int64_t whole = live_bytes({}, {});
  int64_t num_parameters = 0;
  for (const ParameterSource& source : sources) {
    num_parameters += source.spec.num_elements();
  }
  CHECK(whole >= 16 * num_parameters);
  CHECK(whole < 16.3 * num_parameters);
  struct Expected {
    int stage;
    bool offload_optimizer, offload_params;
    double share;
  };
  for (const auto& [stage, optimizer, params, share] :
       {// Values, and a quarter of gradients and two moments: 7/16.
        Expected{1, false, false, 0.45}, Expected{2, false, false, 0.45},
        Expected{3, false, false, 0.3}, Expected{3, true, false, 0.07},
        Expected{3, true, true, 0.01}}) {
    std::vector<int64_t> live(4);
    const ParallelPlan plan = plan_of(4, 1, 4);
    testing::run_ranks(
        plan, [&, stage = stage, optimizer = optimizer, params = params](const Mesh& mesh) {
          live[mesh.world.rank()] = live_bytes(mesh, ShardingOptions{.stage = stage,
                                                                     .shard = mesh.shard,
                                                                     .replicas = mesh.replicas,
                                                                     .offload_optimizer = optimizer,
                                                                     .offload_params = params});
        });
    CAPTURE(stage);
    CAPTURE(optimizer);
    CAPTURE(params);
    if (stage == 3) {
      // A share and its copies on the device, and one parameter, whole and cut.
      const int64_t largest = 4 * config.vocab_size * config.hidden_size;
      CHECK(loading_peak < num_parameters + 2 * largest + 4000);
      CHECK(loading_peak < 4 * num_parameters / 2);
    }
    for (const int64_t mine : live) {
      CHECK(static_cast<double>(mine) < share * static_cast<double>(whole));
    }
  }
}

}  // namespace longspan
