#include "longspan/layers/chunked_projections.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <torch/csrc/autograd/autograd.h>

#include "longspan/attention/block_kernel.h"
#include "longspan/memory/counting_allocator.h"
#include "longspan/models/decoder.h"
#include "longspan/plan/parallel_plan.h"
#include "longspan/rows/batch.h"
#include "longspan/sequence_parallel/sequence_parallel.h"
#include "longspan/testing/parameter_specs.h"
#include "longspan/testing/ranks.h"
#include "longspan/testing/small_model.h"

namespace longspan {
namespace {

TEST_CASE("chunked projections: nothing of the weights is saved between forward and backward") {
  // Few tokens and wide layers: a copy of one matrix is larger than all activations.
  testing::SmallModel config;
  config.model_type = "qwen2";
  config.vocab_size = 16;
  config.hidden_size = 256;
  config.intermediate_size = 32;
  config.num_layers = 3;
  config.num_heads = 8;
  config.num_kv_heads = 2;
  config.head_dim = 32;
  PlanRequest request;
  request.world_size = request.sequence_size = 2;
  request.method = method_named("async-ulysses");
  request.num_heads = config.num_heads;
  request.num_kv_heads = config.num_kv_heads;
  request.head_dim = config.head_dim;
  const ParallelPlan plan = make_parallel_plan(request);
  Batch row;
  row.packing = Packing::single(8);
  row.tokens_T = at::arange(8, at::kLong);
  row.labels_T = at::arange(8, at::kLong).add(1);
  row.positions_T = at::arange(8, at::kLong);
  row.documents_T = at::zeros({8}, at::kLong);
  const int64_t matrix_bytes = 4 * config.hidden_size * config.num_heads * config.head_dim;
  std::vector<NamedTensor> start;
  at::manual_seed(2);
  for (const auto& [name, shape] : testing::parameter_shapes(config.spec())) {
    start.push_back({name, at::randn(shape) * 0.05});
  }
  testing::run_ranks(plan, [&](const Mesh& mesh) {
    std::vector<NamedTensor> parameters;
    for (const auto& [name, tensor] : start) {
      parameters.push_back({name, tensor.clone().set_requires_grad(true)});
    }
    const auto attention = make_attention(plan, mesh, cpu_block_kernel());
    Decoder model(config.spec(), parameters, *attention, {.gradient_checkpointing = false});
    const Batch local = shard(row, attention->token_order(row.packing));
    const AllocationCounter counter(AllocationCounter::Of::kThisThread);
    const at::Tensor loss = model.token_logprobs(local).sum();
    CHECK(counter.live_bytes() < matrix_bytes);
    torch::autograd::backward({loss}, {});
    for (const auto& [name, tensor] : parameters) CHECK(tensor.grad().defined());
  });
}

}  // namespace
}  // namespace longspan
