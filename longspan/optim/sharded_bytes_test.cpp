// The bytes that sharded parameters gather.
#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <doctest/doctest.h>

#include <atomic>
#include <cstdlib>
#include <stdexcept>
#include <vector>

#include "longspan/optim/sharded_parameters.h"
#include "longspan/testing/ranks.h"
#include "longspan/testing/small_model.h"

namespace longspan {
namespace {

TEST_CASE("sharding: with bf16, matrices are gathered in bf16 at every stage") {
  testing::SmallModel config;
  config.model_type = "qwen2";
  config.vocab_size = 61;
  config.hidden_size = 24;
  config.intermediate_size = 36;
  config.num_layers = 3;
  config.num_heads = 4;
  config.num_kv_heads = 2;
  config.head_dim = 6;
  std::vector<ParameterSource> sources;
  int64_t num_of_matrices = 0;
  for (const ParameterSpec& parameter : parameters_of(config.spec())) {
    sources.push_back({parameter, at::kFloat, /*trained=*/true,
                       [shape = parameter.shape] { return at::full(shape, 0x1p-10, at::kFloat); }});
    if (is_copied_for_use(parameter)) num_of_matrices += parameter.num_elements();
  }
  const auto gathered = [&](int stage, bool saves_masters) {
    std::atomic<int64_t> bytes{0};
    testing::run_ranks(4, [&](const Mesh& mesh) {
      ShardedParameters sharded(sources, {.stage = stage,
                                          .shard = mesh.world,
                                          .replicas = {},
                                          .compute_dtype = at::kBFloat16,
                                          .saves_masters = saves_masters});
      for (const ParameterShard& shard : sharded.shards()) {
        const c10::NoGradGuard no_grad;
        at::Tensor(shard.values).add_(1.0);
      }
      const int64_t before = mesh.world.traffic().all_gather;
      sharded.publish();
      if (mesh.world.rank() == 0) bytes = mesh.world.traffic().all_gather - before;
      for (const auto& [name, tensor] : sharded.parameters()) {
        const at::Tensor masters = at::full(tensor.sizes(), 1 + 0x1p-10, at::kFloat);
        if (!tensor.equal(masters.to(tensor.scalar_type()))) throw std::runtime_error(name);
      }
    });
    return bytes.load();
  };
  for (const int stage : {1, 2}) {
    CAPTURE(stage);
    const int64_t saved = gathered(stage, true) - gathered(stage, false);
    // Three quarters of two bytes an element; shares are padded to 64 elements.
    const int64_t padding = 3 * config.num_layers * 2 * 64 * 4;
    CHECK(std::abs(saved - 3 * 2 * num_of_matrices / 4) <= padding);
    CHECK(saved > 2 * padding);
  }
}

}  // namespace
}  // namespace longspan
