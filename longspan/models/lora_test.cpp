// Compares adapters in the decoder to the same model with B A added to its weights, in fp64.
#include "longspan/models/lora.h"
#include "longspan/models/decoder.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <doctest/doctest.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <map>
#include <set>
#include <stdexcept>
#include <utility>

#include "longspan/base/user_error.h"
#include "longspan/comm/group.h"
#include "longspan/kernels/dropout.h"
#include "longspan/layers/adapters.h"
#include "longspan/layers/layer_weights.h"
#include "longspan/layers/make_layer.h"
#include "longspan/plan/parallel_plan.h"
#include "longspan/sequence_parallel/sequence_parallel.h"
#include "longspan/testing/parameter_specs.h"
#include "longspan/testing/plain_parts.h"
#include "longspan/testing/ranks.h"
#include "longspan/testing/small_model.h"

namespace longspan {
namespace {

ModelSpec small_model() {
  testing::SmallModel config;
  config.model_type = "llama";
  config.vocab_size = 31;
  config.hidden_size = 24;
  config.intermediate_size = 40;
  config.num_layers = 2;
  config.num_heads = 6;
  config.num_kv_heads = 2;
  config.head_dim = 4;
  config.qkv_bias = true;
  config.norm_eps = 1e-3;
  return config.spec();
}

/// The same without biases, with files that fuse the projections before attention, and gate and up.
/// Each fused tensor has one adapter.
ModelSpec fused_model() {
  ModelSpec model = small_model();
  auto& mixer = std::get<SelfAttentionSpec>(model.pattern.front().mixer);
  mixer.qkv_bias = false;
  mixer.stored_as_one = true;
  std::get<GatedMlpSpec>(model.pattern.front().feed_forward).stored_as_one = true;
  return model;
}

std::vector<NamedTensor> random_leaves(const std::vector<ParameterShape>& shapes, bool train) {
  std::vector<NamedTensor> parameters;
  for (const auto& [name, shape] : shapes) {
    auto tensor = at::randn(shape, at::kDouble) * 0.3;
    if (name.ends_with("norm.weight")) tensor = tensor + 1;
    parameters.push_back({name, tensor.requires_grad_(train)});
  }
  return parameters;
}

Batch random_batch(const ModelSpec& model) {
  Batch batch;
  batch.packing = Packing::from_lengths({9, 14});
  batch.tokens_T = at::randint(model.vocab_size, {23}, at::kLong);
  batch.labels_T = at::randint(model.vocab_size, {23}, at::kLong);
  batch.labels_T.masked_fill_(at::rand({23}).ge(0.6), kIgnoreLabel);
  batch.positions_T = at::cat({at::arange(9), at::arange(14)});
  batch.documents_T = at::cat({at::zeros({9}, at::kLong), at::ones({14}, at::kLong)});
  return batch;
}

struct Adapted {
  ModelSpec spec;
  LoraShape shape;
  std::vector<NamedTensor> base, adapter, all;

  explicit Adapted(const std::string& target, ModelSpec model = small_model(),
                   bool decomposed = false)
      : spec(std::move(model)) {
    shape.decomposed = decomposed;
    at::manual_seed(5);
    shape.r = 3;
    shape.alpha = 5;
    shape.modules = lora_modules_from(target, spec);
    base = random_leaves(testing::parameter_shapes(spec), /*train=*/false);
    std::vector<ParameterShape> shapes;
    for (const auto& [name, tensor] : new_lora_parameters(spec, shape, 1)) {
      shapes.push_back({name, tensor.sizes().vec()});
    }
    adapter = random_leaves(shapes, /*train=*/true);
    all = base;
    all.insert(all.end(), adapter.begin(), adapter.end());
  }

  DecoderOptions options(bool checkpointing, double dropout = 0.0) const {
    return {.gradient_checkpointing = checkpointing,
            .lora_scale = shape.scale(),
            .lora_dropout = dropout};
  }

  /// Returns the factors of the rows of W + scale B A: magnitudes by lengths, or ones.
  at::Tensor factors_of(const ParameterSpec& own, const at::Tensor& sum_OI) const {
    if (!shape.decomposed) return at::ones({sum_OI.size(0)}, at::kDouble);
    for (const auto& [name, tensor] : adapter) {
      if (name != lora_magnitude_name(own)) continue;
      return own_rows(own, tensor.detach()) / sum_OI.square().sum(1).sqrt();
    }
    throw std::logic_error("no magnitudes");
  }

  /// Returns new leaves W + scale B A, with the lengths of rows that magnitudes give.
  std::vector<NamedTensor> merged() const {
    std::map<std::string, at::Tensor> matrices;
    for (const auto& [name, tensor] : adapter) matrices[name] = tensor.detach();
    const ParameterTable specs(parameters_of(spec));
    std::vector<NamedTensor> weights;
    for (const auto& [name, tensor] : base) {
      at::Tensor weight = tensor.detach().clone();
      const ParameterSpec& own = specs.of(name);
      if (shape.modules.contains(own.lora_target)) {
        const at::Tensor delta_OI = matrices.at(lora_b_name(own)).mm(matrices.at(lora_a_name(own)));
        weight += shape.scale() * delta_OI.narrow(0, lora_b_begin(own), weight.size(0));
        weight.mul_(factors_of(own, weight).unsqueeze(1));
      }
      weights.push_back({name, weight.requires_grad_(true)});
    }
    return weights;
  }
};

/// Checks the gradients of A, B and magnitudes against the chain rule on the merged weights'
/// gradients, stacked for a shared adapter. The lengths of rows have no gradient.
void check_gradients(const Adapted& model, const std::vector<NamedTensor>& merged) {
  std::map<std::string, at::Tensor> by_name;
  for (const auto& [name, tensor] : model.adapter) by_name[name] = tensor;
  const ParameterTable specs(parameters_of(model.spec));
  std::map<std::string, std::vector<at::Tensor>> gradients, of_magnitudes;
  for (const auto& [name, weight] : merged) {
    const ParameterSpec& own = specs.of(name);
    if (!model.shape.modules.contains(own.lora_target)) continue;
    at::Tensor factors_O = at::ones({1}, at::kDouble);
    if (model.shape.decomposed) {
      const at::Tensor m_O = own_rows(own, by_name.at(lora_magnitude_name(own))).detach();
      of_magnitudes[own.adapted_linear].push_back((weight.grad() * weight.detach()).sum(1) / m_O);
      const at::Tensor base = std::ranges::find(model.base, name, &NamedTensor::name)->tensor;
      const at::Tensor delta =
          by_name.at(lora_b_name(own)).detach().mm(by_name.at(lora_a_name(own)).detach());
      factors_O = model.factors_of(own, base + model.shape.scale() * own_rows(own, delta));
    }
    gradients[own.adapted_linear].push_back(factors_O.unsqueeze(1) * weight.grad());
  }
  CHECK((model.shape.decomposed ? 3 : 2) * gradients.size() == model.adapter.size());
  for (const auto& [layer, parts] : of_magnitudes) {
    CAPTURE(layer);
    const at::Tensor m_O = by_name.at(lora_magnitude_name(layer));
    CHECK(at::allclose(m_O.grad(), at::cat(parts), 1e-10, 1e-12));
  }
  for (const auto& [layer, parts] : gradients) {
    CAPTURE(layer);
    const at::Tensor a = by_name.at(layer + ".lora_A.weight"),
                     b = by_name.at(layer + ".lora_B.weight");
    const at::Tensor dw = at::cat(parts);
    CHECK(at::allclose(a.grad(), model.shape.scale() * b.detach().t().mm(dw), 1e-10, 1e-12));
    CHECK(at::allclose(b.grad(), model.shape.scale() * dw.mm(a.detach().t()), 1e-10, 1e-12));
  }
}

TEST_CASE("lora: an adapter is B A added to its weight, in the result and in all gradients") {
  const auto attention = make_local(cpu_block_kernel());
  struct Case {
    const char* target;
    ModelSpec spec;
    bool decomposed;
  };
  const std::vector<Case> cases = {
      {"all", small_model(), false},      {"q_proj,v_proj", small_model(), false},
      {"all", fused_model(), false},      {"o_proj,down_proj", small_model(), false},
      {"qkv_proj", fused_model(), false}, {"gate_up_proj,o_proj", fused_model(), false},
      {"all", small_model(), true},       {"qkv_proj,down_proj", fused_model(), true}};
  for (const auto& [target, spec, decomposed] : cases) {
    for (const bool checkpointing : {false, true}) {
      CAPTURE(target);
      CAPTURE(checkpointing);
      const Adapted adapted(target, spec, decomposed);
      const Batch batch = random_batch(adapted.spec);
      Decoder model(adapted.spec, adapted.all, *attention, adapted.options(checkpointing));
      const auto merged = adapted.merged();
      Decoder expected(adapted.spec, merged, *attention, {checkpointing});
      const at::Tensor logprobs = model.token_logprobs(batch);
      const at::Tensor expected_logprobs = expected.token_logprobs(batch);
      CHECK(at::allclose(logprobs, expected_logprobs, 1e-11, 1e-12));
      const at::Tensor upstream = at::randn(logprobs.sizes(), at::kDouble);
      torch::autograd::backward({(logprobs * upstream).sum()}, {});
      torch::autograd::backward({(expected_logprobs * upstream).sum()}, {});
      check_gradients(adapted, merged);
      for (const auto& [name, tensor] : adapted.base) CHECK(!tensor.grad().defined());

      model.use_adapters(false);
      Decoder base(adapted.spec, adapted.base, *attention, {checkpointing});
      CHECK(at::equal(model.token_logprobs(batch), base.token_logprobs(batch)));
    }
  }
}

void check_chunked(const Adapted& adapted) {
  ParallelPlan plan;
  plan.world_size = plan.sequence_size = plan.ulysses_size = plan.head_waves = 2;
  plan.method = method_named("async-ulysses");
  const Batch batch = random_batch(adapted.spec);
  const auto local = make_local(cpu_block_kernel());
  const auto merged = adapted.merged();
  Decoder expected(adapted.spec, merged, *local, {});
  torch::autograd::backward({expected.negative_log_likelihood_sum(batch)}, {});
  // Each rank has its own matrices, as processes do; threads must not add to the same ones.
  std::vector<std::vector<NamedTensor>> of_ranks(2);
  for (auto& own : of_ranks) {
    for (const auto& [name, tensor] : adapted.all) {
      own.push_back({name, tensor.detach().clone().requires_grad_(tensor.requires_grad())});
    }
  }
  testing::run_ranks(plan, [&](const Mesh& mesh) {
    const auto attention = make_attention(plan, mesh, cpu_block_kernel());
    Decoder model(adapted.spec, of_ranks[mesh.world.rank()], *attention, adapted.options(true));
    const Batch share = shard(batch, attention->token_order(batch.packing));
    torch::autograd::backward({model.negative_log_likelihood_sum(share)}, {});
  });
  for (size_t i = 0; i < adapted.all.size(); ++i) {
    const at::Tensor& tensor = adapted.all[i].tensor;
    if (!tensor.requires_grad()) continue;
    tensor.mutable_grad() = of_ranks[0][i].tensor.grad() + of_ranks[1][i].tensor.grad();
  }
  check_gradients(adapted, merged);
}

TEST_CASE("lora: chunked projections have the same adapters") {
  check_chunked(Adapted("all"));
  check_chunked(Adapted("all", fused_model()));
  check_chunked(Adapted("all", small_model(), /*decomposed=*/true));
}

TEST_CASE("lora: projections that share an adapter drop the same of its input") {
  const auto seeds = [](const ModelSpec& spec) {
    const Adapted adapted("all", spec);
    TensorsByName by_name;
    for (const auto& [name, tensor] : adapted.all) by_name[name] = tensor;
    const Layer layer = for_pass(make_layer(spec, 1, by_name, adapted.shape.scale()),
                                 Dropout{0.4, 9, at::arange(3, at::kLong)}, {});
    const auto mixer = layer.mixer->clone();
    const auto feed_forward = layer.feed_forward->clone();
    std::vector<uint64_t> all;
    for (const auto& linears :
         {mixer->linears_before(), mixer->linears_after(), feed_forward->linears()}) {
      for (const Linear* linear : linears) all.push_back(linear->dropout.seed);
    }
    return all;
  };
  const std::vector<uint64_t> own = seeds(small_model()), shared = seeds(fused_model());
  REQUIRE(own.size() == 7);
  CHECK(std::set<uint64_t>(own.begin(), own.end()).size() == 7);
  CHECK(shared == std::vector<uint64_t>{own[0], own[0], own[0], own[3], own[4], own[4], own[6]});
}

void check_dropout(const Adapted& adapted) {
  const auto attention = make_local(cpu_block_kernel());
  const Batch batch = random_batch(adapted.spec);
  std::vector<at::Tensor> losses;
  std::vector<std::vector<at::Tensor>> gradients;
  for (const bool checkpointing : {false, true}) {
    Decoder model(adapted.spec, adapted.all, *attention, adapted.options(checkpointing, 0.4));
    model.set_dropout_seed(9);
    losses.push_back(model.negative_log_likelihood_sum(batch));
    torch::autograd::backward({losses.back()}, {});
    gradients.emplace_back();
    for (const auto& [name, tensor] : adapted.adapter) {
      gradients.back().push_back(tensor.grad().clone());
      tensor.mutable_grad().reset();
    }
  }
  CHECK(at::equal(losses[0], losses[1]));
  for (size_t i = 0; i < gradients[0].size(); ++i) {
    CHECK(at::allclose(gradients[0][i], gradients[1][i], 1e-11, 1e-12));
  }
  // Compares to finite differences: for a fixed seed the loss is smooth in the matrices.
  Decoder model(adapted.spec, adapted.all, *attention, adapted.options(true, 0.4));
  model.set_dropout_seed(9);
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < adapted.adapter.size(); i += 3) {
    const at::Tensor& tensor = adapted.adapter[i].tensor;
    CAPTURE(adapted.adapter[i].name);
    const at::Tensor direction = at::randn(tensor.sizes(), at::kDouble);
    const double step = 1e-5;
    tensor.add_(direction, step);
    const double above = model.negative_log_likelihood_sum(batch).item<double>();
    tensor.add_(direction, -2 * step);
    const double below = model.negative_log_likelihood_sum(batch).item<double>();
    tensor.add_(direction, step);
    CHECK((gradients[0][i] * direction).sum().item<double>() ==
          doctest::Approx((above - below) / (2 * step)).epsilon(1e-6).scale(1.0));
  }
  model.set_dropout_seed(10);
  CHECK(!at::allclose(model.negative_log_likelihood_sum(batch), losses[0], 1e-4));
  model.set_dropout_seed(std::nullopt);
  Decoder plain(adapted.spec, adapted.all, *attention, adapted.options(true));
  CHECK(at::equal(model.negative_log_likelihood_sum(batch),
                  plain.negative_log_likelihood_sum(batch)));
}

TEST_CASE("lora: dropout is the same in the forward, the recomputation and the backward") {
  check_dropout(Adapted("all"));
  check_dropout(Adapted("all", fused_model()));
}

TEST_CASE("lora: layers by their plain version have the same adapters, and drop the same") {
  const auto attention = make_local(cpu_block_kernel());
  for (const ModelSpec& spec : {small_model(), fused_model()}) {
    for (const char* target : {"all", "v_proj,down_proj"}) {
      if (target != std::string("all") && spec == fused_model()) continue;
      const Adapted adapted(target, spec, /*decomposed=*/target == std::string("all"));
      const Batch batch = random_batch(adapted.spec);
      // The layers' own steps; plain parts in the decoder, with and without checkpointing; and the
      // plain version by autograd.
      std::vector<DecoderOptions> ways(5, adapted.options(true, 0.4));
      const auto change = [](Layer& layer, int64_t) { layer = testing::with_plain_parts(layer); };
      ways[1].change_layer = ways[2].change_layer = ways[3].change_layer = change;
      ways[2].gradient_checkpointing = false;
      ways[3].mlp_tiles = 4;
      ways[4].plain_layers = true;
      std::vector<double> losses;
      std::vector<std::vector<at::Tensor>> gradients;
      for (const DecoderOptions& options : ways) {
        Decoder model(adapted.spec, adapted.all, *attention, options);
        model.set_dropout_seed(9);
        const at::Tensor loss = model.negative_log_likelihood_sum(batch);
        torch::autograd::backward({loss}, {});
        losses.push_back(loss.item<double>());
        gradients.emplace_back();
        for (const auto& [name, tensor] : adapted.adapter) {
          gradients.back().push_back(tensor.grad().clone());
          tensor.mutable_grad().reset();
        }
        for (const auto& [name, tensor] : adapted.base) CHECK(!tensor.grad().defined());
        model.use_adapters(false);
        Decoder base(adapted.spec, adapted.base, *attention, options);
        CHECK(at::equal(model.token_logprobs(batch), base.token_logprobs(batch)));
      }
      for (size_t way = 1; way < ways.size(); ++way) {
        CAPTURE(way);
        CHECK(losses[way] == doctest::Approx(losses[0]).epsilon(1e-12));
        for (size_t i = 0; i < gradients[0].size(); ++i) {
          CHECK(at::allclose(gradients[way][i], gradients[0][i], 1e-11, 1e-12));
        }
      }
    }
  }
}

TEST_CASE("lora: what is merged is B A of each projection's rows, and no matrix is left") {
  for (const ModelSpec& spec : {small_model(), fused_model()}) {
    const Adapted adapted("all", spec, /*decomposed=*/spec == fused_model());
    std::vector<NamedTensor> parameters;
    for (const auto& [name, tensor] : adapted.all) {
      parameters.push_back({name, tensor.detach().to(at::kFloat)});
    }
    merge_lora(spec, parameters, adapted.shape.scale());
    const std::vector<NamedTensor> expected = adapted.merged();
    REQUIRE(parameters.size() == expected.size());
    for (size_t i = 0; i < expected.size(); ++i) {
      CAPTURE(expected[i].name);
      CHECK(parameters[i].name == expected[i].name);
      CHECK(at::allclose(parameters[i].tensor, expected[i].tensor.detach().to(at::kFloat), 1e-5,
                         1e-6));
    }
  }
}

TEST_CASE("lora: modules are named or all; others are refused") {
  const ModelSpec model = small_model();
  CHECK(lora_modules_from("all", model).size() == 7);
  CHECK(lora_modules_from("q_proj, v_proj", model) == std::set<std::string>{"q_proj", "v_proj"});
  CHECK_THROWS_WITH_AS(lora_modules_from("q_proj,query", model),
                       doctest::Contains("no module query; choose from q_proj, k_proj, v_proj, "
                                         "o_proj, gate_proj, up_proj, down_proj, or all"),
                       UserError);
  CHECK_THROWS_AS(lora_modules_from("", model), UserError);
}

}  // namespace
}  // namespace longspan
