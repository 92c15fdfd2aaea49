#include "longspan/account/kept_layers.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "longspan/account/run_account.h"
#include "longspan/config/config.h"
#include "longspan/plan/parallel_plan.h"
#include "longspan/plan/plan_request.h"
#include "longspan/testing/small_model.h"

namespace longspan {
namespace {

constexpr int64_t kHidden = 64, kTokens = 1024;

LayerSpec dense(int64_t intermediate_size) {
  SelfAttentionSpec mixer;
  mixer.attention = plain_attention(4, 2, 16);
  return {mixer, GatedMlpSpec{intermediate_size}};
}

LayerSpec of_experts() {
  LayerSpec layer = dense(1);
  layer.feed_forward = MixtureOfExpertsSpec{
      .num_experts = 8, .experts_per_token = 2, .expert_size = 40, .router = {}, .shared = {}};
  return layer;
}

ModelSpec model_of(std::vector<LayerSpec> pattern, int64_t num_layers) {
  ModelSpec model;
  model.vocab_size = 100;
  model.hidden_size = kHidden;
  model.num_layers = num_layers;
  model.pattern = std::move(pattern);
  return model;
}

MemoryFacts facts_of(const ModelSpec& model) {
  MemoryFacts facts;
  facts.hidden_size = kHidden;
  facts.vocab_size = model.vocab_size;
  const std::vector<int64_t> counts = layers_of_pattern(model);
  for (size_t i = 0; i < counts.size(); ++i) {
    facts.layers.push_back({cost_of(model.pattern[i], kHidden), counts[i]});
  }
  facts.last_layer = static_cast<size_t>((model.num_layers - 1) % std::ssize(model.pattern));
  facts.num_tokens = facts.num_labels = kTokens;
  return facts;
}

int64_t device_with(MemoryFacts facts, const ModelSpec& model, int64_t count) {
  keep_layers(facts, model, count);
  return account_of(facts).device;
}

TEST_CASE("kept layers: gate and up of each of them, in the dtype of computation") {
  const ModelSpec model = model_of({dense(160)}, 5);
  MemoryFacts facts = facts_of(model);
  for (const int64_t bytes : {4, 2}) {
    facts.compute_bytes = bytes;
    const int64_t none = device_with(facts, model, 0);
    CHECK(device_with(facts, model, 1) - none == kTokens * 2 * 160 * bytes);
    CHECK(device_with(facts, model, 5) - none == 5 * kTokens * 2 * 160 * bytes);
  }
  // In the last layer, only rows with labels pass the feed-forward.
  facts.num_labels = kTokens / 4;
  CHECK(device_with(facts, model, 2) - device_with(facts, model, 0) ==
        kTokens * 2 * 160 * 2 + kTokens / 4 * 2 * 160 * 2);
  // The tensors stay on the device, and a rank has those of its own tokens.
  facts.num_labels = kTokens;
  facts.offload_activations = true;
  facts.sequence_size = 4;
  CHECK(device_with(facts, model, 3) - device_with(facts, model, 0) ==
        3 * kTokens / 4 * 2 * 160 * 2);
  keep_layers(facts, model, 3);
  CHECK(table_of(account_of(facts)).find("kept of MLPs") != std::string::npos);
  CHECK(table_of(account_of(facts)).find("of 3 of 5 layers") != std::string::npos);
  // Tiles keep nothing, and without checkpointing everything is saved anyway.
  facts.mlp_tiles = 2;
  CHECK(device_with(facts, model, 3) == device_with(facts, model, 0));
  facts.mlp_tiles = 0;
  facts.offload_activations = facts.checkpointing = false;
  CHECK(device_with(facts, model, 3) == device_with(facts, model, 0));
}

TEST_CASE("kept layers: a norm behind the MLP saves its input, in the dtype of hidden states") {
  LayerSpec layer = dense(160);
  layer.norms.behind = LayerNorms::Behind{"a", "b"};
  const ModelSpec model = model_of({layer}, 3);
  MemoryFacts facts = facts_of(model);
  facts.compute_bytes = 2;
  CHECK(device_with(facts, model, 2) - device_with(facts, model, 0) ==
        2 * kTokens * (2 * 160 * 2 + kHidden * 4));
}

TEST_CASE("kept layers: the last of those that have something to keep") {
  // Experts always recompute gate and up.
  const ModelSpec model = model_of({dense(160), of_experts(), dense(320)}, 8);
  CHECK(num_saving_layers(model) == 5);
  CHECK(last_saving_layers(model, 3) == std::vector<int64_t>{6, 5, 3});
  CHECK(last_saving_layers(model, 100) == std::vector<int64_t>{6, 5, 3, 2, 0});
  CHECK(last_saving_layers(model, 0).empty());
  MemoryFacts facts = facts_of(model);
  keep_layers(facts, model, 3);
  CHECK(facts.layers[0].kept == 2);
  CHECK(facts.layers[1].kept == 0);
  CHECK(facts.layers[2].kept == 1);
}

TEST_CASE("kept layers: as many as fit, to the byte") {
  const ModelSpec model = model_of({dense(160)}, 5);
  MemoryFacts facts = facts_of(model);
  facts.parameter_bytes = 4'000'000;
  for (const bool cuda : {false, true}) {
    facts.cuda = cuda;
    facts.offload_optimizer = true;
    facts.num_trained = 1000;  // with states in host memory
    for (int64_t count = 0; count <= 5; ++count) {
      CAPTURE(count);
      keep_layers(facts, model, count);
      const MemoryAccount account = account_of(facts);
      // On a CPU, host and device are one memory.
      const int64_t needed = account.device + (cuda ? account.beside_tensors : account.host);
      CHECK(kept_layers_that_fit(facts, model, needed).count == count);
      CHECK(kept_layers_that_fit(facts, model, needed - 1).count ==
            std::max<int64_t>(0, count - 1));
    }
  }
  const std::string all = kept_layers_that_fit(facts, model, int64_t{1} << 40).reason;
  CHECK_MESSAGE(all.starts_with("Gate and up are kept of 5 of 5 layers: a rank then takes "), all);
  CHECK_MESSAGE(all.find(" of 1024.0 GiB, by the account.") != std::string::npos, all);
  CHECK(kept_layers_that_fit(facts, model, 0)
            .reason.starts_with("Gate and up are kept of none of 5 layers: a rank takes "));
}

// tools/roofline has these numbers.
TEST_CASE("kept layers: Qwen2.5-7B in bf16 on 8 GPUs of 80 GB that share a row and its states") {
  testing::SmallModel shape{.vocab_size = 152064,
                            .hidden_size = 3584,
                            .intermediate_size = 18944,
                            .num_layers = 28,
                            .num_heads = 28,
                            .num_kv_heads = 4,
                            .head_dim = 128};
  shape.qkv_bias = true;
  const ModelSpec model = shape.spec();
  constexpr auto kBytes = static_cast<int64_t>(0.9 * 79.65 * (1 << 30));  // an H100 has 79.65 GiB
  const auto fit = [&](int64_t num_tokens, int num_gpus) {
    Config config;
    config.optimization.bf16 = true;
    config.memory.zero_stage = 3;
    config.parallel.sequence_parallel_size = num_gpus;
    config.data.cutoff_len = num_tokens;
    const ParallelPlan plan = make_parallel_plan(plan_request(
        {config.model, config.data, config.optimization, config.memory, config.parallel}, model,
        num_gpus, num_gpus, /*cuda=*/true));
    const AccountSettings settings{config.model, config.method, config.preferences,
                                   config.optimization, config.memory};
    const Hardware hardware{.cuda = true};
    const RowLengths row{.num_tokens = num_tokens, .num_labels = num_tokens};
    const MemoryFacts facts = memory_facts(
        settings, {model, plan}, planned_run_parameters(settings, model, plan, nullptr, hardware),
        row, hardware);
    return kept_layers_that_fit(facts, model, kBytes);
  };
  CHECK(fit(32'768, 8).count == 28);
  CHECK(fit(131'072, 8).count == 28);
  const KeptLayers alone = fit(32'768, 1);
  CHECK(alone.count == 0);
  CHECK_MESSAGE(alone.reason.find("none of 28 layers: a rank takes 117.4 GiB of 71.7 GiB") !=
                    std::string::npos,
                alone.reason);
}

TEST_CASE("kept layers: what the configuration says") {
  const ModelSpec model = model_of({dense(160)}, 5);
  const auto said = [&](const Config& config, bool cuda) {
    const auto kept = said_kept_layers(config.model, config.memory, model, cuda);
    return kept ? kept->count : -1;  // as many as fit
  };
  Config config;
  CHECK(said(config, false) == 0);
  CHECK(said(config, true) == -1);
  for (const bool cuda : {false, true}) {
    config.memory.kept_mlp_layers = -1;
    CHECK(said(config, cuda) == -1);
    config.memory.kept_mlp_layers = 3;
    CHECK(said(config, cuda) == 3);
    CHECK(said_kept_layers(config.model, config.memory, model, cuda)->reason ==
          "Gate and up are kept of 3 of 5 layers (kept_mlp_layers).");
    config.memory.kept_mlp_layers = 100;
    CHECK(said(config, cuda) == 5);
    config.memory.kept_mlp_layers = 0;
    CHECK(said(config, cuda) == 0);
    CHECK(said_kept_layers(config.model, config.memory, model, cuda)->reason.empty());
  }
  config.memory.kept_mlp_layers.reset();
  config.memory.offload_activations = "true";
  CHECK(said(config, true) == 0);
  config.memory.offload_activations = "false";
  config.memory.tiled_mlp = 2;
  CHECK(said(config, true) == 0);
  config.memory.tiled_mlp.reset();
  config.model.disable_gradient_checkpointing = true;
  CHECK(said(config, true) == 0);
  const Config plain;
  CHECK(said_kept_layers(plain.model, plain.memory, model_of({of_experts()}, 5), true)->count == 0);
}

}  // namespace
}  // namespace longspan
