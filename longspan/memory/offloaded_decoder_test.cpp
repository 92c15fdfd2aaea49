// Compares a decoder with offloaded checkpoints or a tiled MLP to a plain one.
#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <filesystem>
#include <map>
#include <optional>

#include "longspan/attention/block_kernel.h"
#include "longspan/memory/activation_offload.h"
#include "longspan/memory/counting_allocator.h"
#include "longspan/memory/host_memory.h"
#include "longspan/models/decoder.h"
#include "longspan/models/lora.h"
#include "longspan/plan/parallel_plan.h"
#include "longspan/rows/batch.h"
#include "longspan/sequence_parallel/sequence_parallel.h"
#include "longspan/testing/parameter_specs.h"
#include "longspan/testing/ranks.h"
#include "longspan/testing/small_model.h"
#include "longspan/testing/temporary_folder.h"
#include "longspan/testing/tolerance.h"

namespace longspan {
namespace {

namespace fs = std::filesystem;

testing::SmallModel small_config(bool qk_norm = false) {
  testing::SmallModel config;
  config.model_type = "qwen3";
  config.vocab_size = 61;
  config.hidden_size = 48;
  config.intermediate_size = 80;
  config.num_layers = 3;
  config.num_heads = 4;
  config.num_kv_heads = 2;
  config.head_dim = 16;
  config.qkv_bias = true;
  config.qk_norm = qk_norm;
  return config;
}

struct Weights {
  std::vector<NamedTensor> all;
  DecoderOptions options;
};

/// The same weights at every call; with LoRA the base is frozen.
Weights weights_of(const testing::SmallModel& config, bool lora,
                   at::ScalarType dtype = at::kFloat) {
  Weights weights;
  at::manual_seed(3);
  const auto add = [&](const std::string& name, at::IntArrayRef shape, bool train) {
    // Scales matrices so that activations keep their size. With larger ones attention sees a single
    // key, rounding decides which, and fp32 gradients differ from fp64's by a thousand roundings.
    const double scale = shape.size() == 2 ? 1 / std::sqrt(static_cast<double>(shape[1])) : 0.2;
    at::Tensor tensor = at::randn(shape) * scale;
    if (name.ends_with("norm.weight")) tensor = tensor + 1;
    weights.all.push_back({name, tensor.to(dtype).requires_grad_(train)});
  };
  for (const auto& [name, shape] : testing::parameter_shapes(config.spec()))
    add(name, shape, !lora);
  if (lora) {
    LoraShape shape;
    shape.r = 3;
    shape.modules = lora_modules_from("all", config.spec());
    for (const auto& [name, tensor] : new_lora_parameters(config.spec(), shape, 1)) {
      add(name, tensor.sizes(), true);
    }
    weights.options.lora_scale = shape.scale();
    weights.options.lora_dropout = 0.25;
  }
  return weights;
}

/// Copies as new leaves, so that gradients of one use do not add to another's.
Weights copy_of(const Weights& weights) {
  Weights copy{{}, weights.options};
  for (const auto& [name, tensor] : weights.all) {
    copy.all.push_back({name, tensor.detach().clone().requires_grad_(tensor.requires_grad())});
  }
  return copy;
}

Batch random_row(const testing::SmallModel& config, const std::vector<int64_t>& lengths) {
  at::manual_seed(4);
  Batch batch;
  batch.packing = Packing::from_lengths(lengths);
  const int64_t T = batch.packing.num_tokens();
  batch.tokens_T = at::randint(config.vocab_size, {T}, at::kLong);
  batch.labels_T = at::randint(config.vocab_size, {T}, at::kLong);
  batch.labels_T.masked_fill_(at::rand({T}).ge(0.7), kIgnoreLabel);
  std::vector<at::Tensor> positions, documents;
  for (size_t i = 0; i < lengths.size(); ++i) {
    positions.push_back(at::arange(lengths[i], at::kLong));
    documents.push_back(at::full({lengths[i]}, static_cast<int64_t>(i), at::kLong));
  }
  batch.positions_T = at::cat(positions);
  batch.documents_T = at::cat(documents);
  return batch;
}

using Results = std::map<std::string, at::Tensor>;

/// Log probabilities and gradients of two steps on this share of the row. The graph of the first
/// step is discarded once, as after an error.
Results results_of(const testing::SmallModel& config, Weights weights, Attention& attention,
                   const Batch& local) {
  Decoder model(config.spec(), weights.all, attention, weights.options);
  if (weights.options.lora_dropout > 0) model.set_dropout_seed(17);
  {
    const at::Tensor dropped = model.token_logprobs(local);
  }
  Results results;
  for (int step = 0; step < 2; ++step) {
    const at::Tensor logprobs = model.token_logprobs(local);
    const at::Tensor scale = at::linspace(0.5, 1.5, logprobs.size(0));
    torch::autograd::backward({(logprobs * scale).sum()}, {});
    results["logprobs"] = logprobs.detach();
  }
  for (const auto& [name, tensor] : weights.all) {
    if (tensor.grad().defined()) results[name] = tensor.grad();
  }
  return results;
}

void check_equal(const Results& actual, const Results& expected) {
  CHECK(actual.size() == expected.size());
  for (const auto& [name, tensor] : expected) {
    INFO(name);
    CHECK(actual.at(name).equal(tensor));
  }
}

TEST_CASE("activation offload: log probabilities and gradients are the same, bit for bit") {
  const testing::TemporaryFolder folder;
  for (const bool lora : {false, true}) {
    for (const bool qk_norm : {false, true}) {
      for (const at::ScalarType compute : {at::kFloat, at::kBFloat16}) {
        CAPTURE(lora);
        CAPTURE(qk_norm);
        CAPTURE(c10::toString(compute));
        const testing::SmallModel config = small_config(qk_norm);
        const Batch row = random_row(config, {37, 5, 90});
        const auto attention = make_local(cpu_block_kernel());
        Weights weights = weights_of(config, lora);
        weights.options.compute_dtype = compute;
        const Results expected = results_of(config, weights, *attention, row);
        for (const std::string& where : {std::string(), folder.path}) {
          CAPTURE(where);
          ActivationOffload store(at::kCPU, where, /*ahead=*/lora);
          Weights offloaded = weights_of(config, lora);
          offloaded.options.compute_dtype = compute;
          offloaded.options.activation_store = &store;
          check_equal(results_of(config, offloaded, *attention, row), expected);
        }
      }
    }
  }
}

TEST_CASE("activation offload: the same bits where several processes share the row") {
  const testing::TemporaryFolder folder;
  struct Case {
    const Method* method;
    int waves;
  };
  for (const Case& c :
       {Case{method_named("ulysses"), 1}, Case{method_named("ulysses"), 2},
        Case{method_named("async-ulysses"), 2}, Case{method_named("zigzag-ring"), 1},
        Case{method_named("balanced-ulysses"), 1}, Case{method_named("llama3"), 1}}) {
    const testing::SmallModel config = small_config();
    PlanRequest request;
    request.world_size = request.sequence_size = 2;
    request.method = c.method;
    if (c.waves > 1) request.head_waves = c.waves;
    request.num_heads = config.num_heads;
    request.num_kv_heads = config.num_kv_heads;
    request.head_dim = config.head_dim;
    const ParallelPlan plan = make_parallel_plan(request);
    CAPTURE(describe_method(plan));
    const Batch row = random_row(config, {37, 5, 90});
    const Weights start = weights_of(config, /*lora=*/false);
    std::vector<Results> expected(2), in_memory(2), in_file(2);
    testing::run_ranks(plan, [&](const Mesh& mesh) {
      const auto attention = make_attention(plan, mesh, cpu_block_kernel());
      const Batch local = shard(row, attention->token_order(row.packing));
      const int rank = mesh.world.rank();
      const auto run = [&](ActivationStore* store) {
        Weights weights = copy_of(start);
        weights.options.activation_store = store;
        return results_of(config, weights, *attention, local);
      };
      ActivationOffload memory(at::kCPU, "", /*ahead=*/true), file(at::kCPU, folder.path);
      expected[rank] = run(nullptr);
      in_memory[rank] = run(&memory);
      in_file[rank] = run(&file);
    });
    for (int rank = 0; rank < 2; ++rank) {
      CAPTURE(rank);
      check_equal(in_memory[rank], expected[rank]);
      check_equal(in_file[rank], expected[rank]);
    }
  }
}

/// Relative error of fp32 against fp64. Some fifty operations, forward and backward, round by 2^-24
/// each; 64 roundings are 4e-6. Adapters of this size amplify roundings some 200 times (8e-4 was
/// measured). A missing or wrong term on any path is further off than 1e-2.
constexpr double kFp32Error = 1e-2;

/// `actual` and `other` are the same sums in another order, so their distances from fp64 differ.
void check_as_exact(const Results& actual, const Results& other, const Results& exact) {
  CHECK(actual.size() == exact.size());
  for (const auto& [name, tensor] : exact) {
    INFO(name);
    CHECK(testing::relative_error(other.at(name), tensor) < kFp32Error);
    const double allowed = testing::allowed_error(other.at(name), tensor);
    CHECK(testing::relative_error(actual.at(name), tensor) < allowed);
  }
}

TEST_CASE("tiled MLP: as untiled, with and without checkpointing, any number of tiles") {
  for (const bool lora : {false, true}) {
    for (const bool checkpointing : {false, true}) {
      CAPTURE(lora);
      CAPTURE(checkpointing);
      const testing::SmallModel config = small_config();
      const Batch row = random_row(config, {37, 5, 90});
      const auto attention = make_local(cpu_block_kernel());
      const auto run = [&](at::ScalarType dtype, int64_t tiles) {
        Weights weights = weights_of(config, lora, dtype);
        weights.options.gradient_checkpointing = checkpointing;
        weights.options.mlp_tiles = tiles;
        return results_of(config, weights, *attention, row);
      };
      const Results exact = run(at::kDouble, 0), untiled = run(at::kFloat, 0);
      for (const int64_t tiles : {1, 7, 1000}) {
        CAPTURE(tiles);
        for (const auto& [name, tensor] : run(at::kDouble, tiles)) {
          INFO(name);
          // fp64 sums in another order differ by less than this.
          CHECK(testing::relative_error(tensor, exact.at(name)) < 1e-11);
        }
        check_as_exact(run(at::kFloat, tiles), untiled, exact);
      }
    }
  }
}

TEST_CASE("tiled MLP: gate and up are never whole") {
  testing::SmallModel config = small_config();
  config.intermediate_size = 4096;
  const Batch row = random_row(config, {2048});
  const auto attention = make_local(cpu_block_kernel());
  const int64_t gate_bytes = 2048 * 4096 * 4;
  for (const bool checkpointing : {false, true}) {
    Weights weights = weights_of(config, /*lora=*/true);
    weights.options.gradient_checkpointing = checkpointing;
    weights.options.mlp_tiles = 32;
    Decoder model(config.spec(), weights.all, *attention, weights.options);
    AllocationCounter device(AllocationCounter::Of::kProcess);
    torch::autograd::backward({model.token_logprobs(row).sum()}, {});
    CHECK(device.peak_bytes() < gate_bytes / 2);
  }
}

TEST_CASE("checkpointed block: chunks of rows give the gradients of whole rows") {
  // Wide enough for two chunks of the projections.
  testing::SmallModel config = small_config(/*qk_norm=*/true);
  config.hidden_size = 2048;
  config.num_layers = 2;
  const Batch row = random_row(config, {1500, 37});
  const auto attention = make_local(cpu_block_kernel());
  const auto run = [&](at::ScalarType dtype, bool checkpointing) {
    Weights weights = weights_of(config, /*lora=*/false, dtype);
    weights.options.gradient_checkpointing = checkpointing;
    return results_of(config, weights, *attention, row);
  };
  check_as_exact(run(at::kFloat, true), run(at::kFloat, false), run(at::kDouble, false));
}

TEST_CASE("activation offload: device memory does not grow with the number of layers") {
  const Batch row = random_row(small_config(), {3000});
  const auto attention = make_local(cpu_block_kernel());
  std::vector<int64_t> peaks;
  const int64_t host_before = host_bytes().live;
  for (const int64_t num_layers : {2, 8}) {
    testing::SmallModel config = small_config();
    config.num_layers = num_layers;
    ActivationOffload store(at::kCPU);
    Weights weights = weights_of(config, /*lora=*/true);
    weights.options.lora_dropout = 0;
    weights.options.activation_store = &store;
    Decoder model(config.spec(), weights.all, *attention, weights.options);
    AllocationCounter device(AllocationCounter::Of::kProcess);
    const at::Tensor loss = model.token_logprobs(row).sum();
    CHECK(host_bytes().live - host_before >= num_layers * row.tokens_T.numel() * 4 * (48 + 64));
    torch::autograd::backward({loss}, {});
    CHECK(host_bytes().live == host_before);
    peaks.push_back(device.peak_bytes());
  }
  CAPTURE(peaks[0]);
  CAPTURE(peaks[1]);
  // The difference allows for the gradients of six layers' adapters.
  CHECK(peaks[1] - peaks[0] < peaks[0] / 20);
}

}  // namespace
}  // namespace longspan
