// Compares the mixture of experts with its plain version. Also its counts and its auxiliary loss.
#include "longspan/layers/mixture_of_experts.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>

#include "longspan/layers/feed_forward_pass.h"
#include "longspan/layers/make_layer.h"
#include "longspan/memory/counting_allocator.h"
#include "longspan/models/decoder.h"
#include "longspan/objectives/load_balance.h"
#include "longspan/sequence_parallel/sequence_parallel.h"
#include "longspan/testing/layer_check.h"
#include "longspan/testing/plain_model.h"
#include "longspan/testing/tolerance.h"

namespace longspan {
namespace {

using testing::plain_logprobs;
using testing::random_batch;
using testing::random_leaves;
using testing::take_gradients;

SelfAttentionSpec small_attention() {
  SelfAttentionSpec spec;
  spec.attention = plain_attention(2, 1, 4);
  return spec;
}

MixtureOfExpertsSpec switched(int64_t experts_per_token, bool normalises) {
  MixtureOfExpertsSpec spec{.num_experts = 5,
                            .experts_per_token = experts_per_token,
                            .expert_size = 8,
                            .router = {},
                            .shared = {}};
  spec.router.normalises = normalises;
  return spec;
}

/// More experts than choices of all tokens: some experts get none.
MixtureOfExpertsSpec grouped(const SharedExpertSpec& shared) {
  MixtureOfExpertsSpec spec{
      .num_experts = 32, .experts_per_token = 3, .expert_size = 6, .router = {}, .shared = {}};
  spec.router = {.scores = RouterSpec::Scores::kSigmoid,
                 .normalises = true,
                 .epsilon = 1e-20,
                 .scale = 2.5,
                 .has_correction_bias = true,
                 .num_groups = 4,
                 .groups_per_token = 2};
  spec.shared = shared;
  return spec;
}

/// Like gpt-oss.
MixtureOfExpertsSpec stacked(const GateActivation& activation, bool bias) {
  MixtureOfExpertsSpec spec = switched(2, false);
  spec.router.scores = RouterSpec::Scores::kSoftmaxOfChosen;
  spec.router.has_bias = true;
  spec.router.scale = 1.5;
  spec.router.name = "router";
  spec.activation = activation;
  spec.bias = bias;
  spec.stacked = true;
  return spec;
}

MixtureOfExpertsSpec with_biases(MixtureOfExpertsSpec spec) {
  spec.bias = true;
  return spec;
}

TEST_CASE(
    "mixture of experts: output and gradients are those of its plain version, in any chunks") {
  const std::vector<MixtureOfExpertsSpec> specs{
      switched(2, true),
      switched(1, false),
      switched(5, true),
      grouped({}),
      grouped({.intermediate_size = 20, .name = "shared_experts"}),
      grouped({.intermediate_size = 20, .name = "shared_expert", .is_gated = true}),
      stacked(ClampedSwiglu{.limit = 0.5}, true),
      stacked(Geglu{}, false),
      with_biases(switched(2, true))};
  for (size_t i = 0; i < specs.size(); ++i) {
    for (const auto& [all_rows, tiles] :
         {std::pair{true, 0}, {true, 3}, {false, 0}, {false, 100}}) {
      CAPTURE(i);
      CAPTURE(all_rows);
      CAPTURE(tiles);
      testing::check_layer(
          {.layer = {small_attention(), specs[i]}, .all_rows = all_rows, .mlp_tiles = tiles});
    }
  }
}

ModelSpec small_mixture() {
  ModelSpec spec = testing::small_model(/*tied=*/false, /*biases=*/false);
  spec.num_layers = 3;
  spec.pattern.push_back({small_attention(), switched(2, false)});
  return spec;
}

TEST_CASE("mixture of experts: counts every token that is no padding, in each layer, once") {
  ModelSpec spec = small_mixture();
  spec.pattern.erase(spec.pattern.begin());
  auto batch = random_batch(spec, {9, 1, 14}, 0.3);
  batch.documents_T.narrow(0, 9, 1).fill_(-1);
  const auto attention = make_local(cpu_block_kernel());
  for (const bool norms_behind : {false, true}) {
    // The backward of these norms needs the output again.
    if (norms_behind) spec.pattern[0].norms.behind = {"mixer_output_norm", "output_norm"};
    for (const auto& [checkpointing, tiles] : {std::pair{false, 0}, {true, 0}, {true, 4}}) {
      CAPTURE(norms_behind);
      CAPTURE(tiles);
      Decoder model(spec, random_leaves(spec), *attention,
                    {.gradient_checkpointing = checkpointing, .mlp_tiles = tiles});
      ExpertLoad load(spec.num_layers, 5);
      load.sums_scores = true;
      model.count_experts(&load);
      const at::Tensor loss = model.negative_log_likelihood_sum(batch);
      model.count_experts(nullptr);
      torch::autograd::backward({loss}, {});  // recomputes, and counts nothing
      CHECK(at::equal(load.counts_LE().sum(1), at::full({3}, 2 * 23, at::kDouble)));
      CHECK(load.scores_E().sum().item<double>() == doctest::Approx(3 * 23));
    }
  }
}

/// coefficient * E * sum_e f_e P_e over the concatenated logits of all layers, by autograd.
at::Tensor plain_auxiliary_loss(const std::vector<at::Tensor>& logits, int64_t num_chosen,
                                double coefficient) {
  const at::Tensor scores = at::cat(logits).softmax(1);
  const at::Tensor chosen = std::get<1>(scores.detach().topk(num_chosen, 1));
  const int64_t E = scores.size(1);
  const at::Tensor shares = at::one_hot(chosen, E).to(at::kDouble).sum(1).mean(0);
  return (shares * scores.mean(0)).sum() * (coefficient * static_cast<double>(E));
}

TEST_CASE("mixture of experts: the auxiliary loss and its gradients, by any chunks and rows") {
  constexpr double kCoefficient = 0.7;
  ModelSpec spec = small_mixture();
  spec.num_layers = 1;
  spec.pattern.erase(spec.pattern.begin());
  const auto parameters = random_leaves(spec);
  const auto batch = random_batch(spec, {9, 1, 14}, 0.4);
  const auto attention = make_local(cpu_block_kernel());
  // One layer: the plain decoder without a feed-forward gives its router's input.
  const auto weight = [&](const std::string& name) {
    for (const auto& parameter : parameters) {
      if (parameter.name == name) return parameter.tensor;
    }
    return at::Tensor();
  };
  ModelSpec without = spec;
  without.pattern[0].feed_forward = GatedMlpSpec{.intermediate_size = 1};
  std::vector<NamedTensor> silent;
  for (const auto& parameter : parameters) {
    if (parameter.name.find(".mlp.") == std::string::npos &&
        parameter.name != "model.norm.weight") {
      silent.push_back(parameter);
    }
  }
  for (const ParameterSpec& parameter : parameters_of(without)) {
    if (parameter.module == "mlp") {
      silent.push_back({parameter.name, at::zeros(parameter.shape, at::kDouble)});
    }
  }
  // The norm after the layers then takes the place of the norm before the experts.
  silent.push_back({"model.norm.weight", weight("model.layers.0.post_attention_layernorm.weight")});
  Decoder before_experts(without, silent, *attention, {.plain_layers = true});
  const at::Tensor x_TD = before_experts.hidden_states(batch);
  const at::Tensor auxiliary = plain_auxiliary_loss(
      {at::matmul(x_TD, weight("model.layers.0.mlp.gate.weight").t())}, 2, kCoefficient);
  torch::autograd::backward({auxiliary - plain_logprobs(spec, parameters, batch).sum()}, {});
  const auto expected = take_gradients(parameters);
  for (const auto& [checkpointing, tiles] : {std::pair{false, 0}, {true, 0}, {true, 4}}) {
    CAPTURE(checkpointing);
    CAPTURE(tiles);
    Decoder model(spec, parameters, *attention,
                  {.gradient_checkpointing = checkpointing, .mlp_tiles = tiles});
    ExpertLoad load(spec.num_layers, 5);
    load.sums_scores = true;
    model.count_experts(&load);
    const at::Tensor loss = model.negative_log_likelihood_sum(batch);
    load.gradient_E = load_balance_gradient(load.counts_LE(), 2, kCoefficient);
    torch::autograd::backward({loss}, {});
    testing::check_equal(take_gradients(parameters), expected);
    CHECK((load.gradient_E * load.scores_E()).sum().item<double>() ==
          doctest::Approx(auxiliary.item<double>()).epsilon(1e-12));
  }
}

/// One layer with these experts, and its parameters.
struct OneLayer {
  ModelSpec model;
  TensorsByName leaves;
  Layer layer;

  OneLayer(const MixtureOfExpertsSpec& experts, bool norms_behind, at::ScalarType dtype) {
    model.hidden_size = 24;
    model.num_layers = 1;
    model.pattern = {{small_attention(), experts}};
    if (norms_behind) model.pattern[0].norms.behind = {"mixer_output_norm", "output_norm"};
    at::manual_seed(3);
    for (const ParameterSpec& parameter : layer_parameters(model, 0)) {
      leaves[parameter.name] = at::randn(parameter.shape, dtype).requires_grad_(true);
    }
    layer = make_layer(model, 0, leaves, /*lora_scale=*/0);
  }
};

TEST_CASE(
    "mixture of experts: saves its input and what its cost says of its choices, in any tiles") {
  constexpr int64_t kTokens = 64;
  const MixtureOfExpertsSpec spec = switched(2, true);
  const FeedForwardCost cost = cost_of(spec, 24);
  CHECK(cost.saved == 0);
  CHECK(cost.choice_bytes == 2 * 2);
  CHECK(cost.idle_matrices == 3 * 3 * 8 * 24);
  CHECK(expert_number_bytes(32768) == 2);
  CHECK(expert_number_bytes(32769) == 4);
  const OneLayer one(spec, /*norms_behind=*/false, at::kFloat);
  const at::Tensor h_TD = at::randn({kTokens, 24}).requires_grad_(true);
  for (const int64_t tiles : {0, 4}) {
    CAPTURE(tiles);
    const RowContext row{nullptr, Packing::single(kTokens), {}, at::kFloat, tiles};
    const AllocationCounter counter(AllocationCounter::Of::kThisThread);
    const at::Tensor out_TD = feed_forward_sublayer(h_TD, one.layer, row);
    CHECK(counter.live_bytes() == kTokens * (4 * 24 + cost.choice_bytes));
  }
}

TEST_CASE("mixture of experts: a backward goes by what its forward has chosen") {
  constexpr int64_t kTokens = 12;
  MixtureOfExpertsSpec spec = switched(1, false);
  spec.num_experts = 32;
  const auto attention = make_local(cpu_block_kernel());
  for (const bool norms_behind : {false, true}) {
    for (const auto& [checkpointing, tiles] : {std::pair{false, 0}, {true, 0}, {true, 5}}) {
      CAPTURE(norms_behind);
      CAPTURE(checkpointing);
      CAPTURE(tiles);
      const OneLayer one(spec, norms_behind, at::kDouble);
      ExpertLoad load(1, 32);
      RowContext row{attention.get(), Packing::single(kTokens), {}, at::kDouble, tiles};
      row.expert_load = &load;
      const at::Tensor h_TD = at::randn({kTokens, 24}, at::kDouble);
      const at::Tensor out_TD = checkpointing ? run_checkpointed(h_TD, one.layer, row, {})
                                              : run_layer(h_TD, one.layer, row, {});
      {
        const at::NoGradGuard no_grad;  // from here on, other experts have the best scores
        one.leaves.at("model.layers.0.mlp.gate.weight").neg_();
      }
      torch::autograd::backward({out_TD.sum()}, {});
      REQUIRE(load.counts_LE().eq(0).any().item<bool>());
      for (int64_t expert = 0; expert < 32; ++expert) {
        CAPTURE(expert);
        const at::Tensor gradient =
            one.leaves.at(fmt::format("model.layers.0.mlp.experts.{}.down_proj.weight", expert))
                .grad();
        CHECK(gradient.ne(0).any().item<bool>() ==
              (load.counts_LE()[0][expert].item<double>() > 0));
      }
    }
  }
}

}  // namespace
}  // namespace longspan
