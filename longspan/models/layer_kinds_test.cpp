// Models whose layers differ, compared to a plain model in fp64.
#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <doctest/doctest.h>
#include <torch/csrc/autograd/autograd.h>

#include <map>
#include <utility>

#include "longspan/attention/block_kernel.h"
#include "longspan/generation/cached_decoder.h"
#include "longspan/models/decoder.h"
#include "longspan/plan/parallel_plan.h"
#include "longspan/sequence_parallel/sequence_parallel.h"
#include "longspan/testing/plain_model.h"
#include "longspan/testing/ranks.h"
#include "longspan/testing/tolerance.h"

namespace longspan {
namespace {

using testing::check_equal;
using testing::plain_logprobs;
using testing::random_batch;
using testing::random_leaves;
using testing::relative_error;
using testing::small_model;
using testing::take_gradients;

/// Six layers that differ in every property of a layer.
ModelSpec mixed_model() {
  ModelSpec spec = small_model(/*tied=*/false, /*biases=*/false);
  spec.num_layers = 6;
  spec.norm_kind = NormKind::kOnePlusWeight;
  SelfAttentionSpec stretched;
  stretched.attention = {
      .num_heads = 4, .num_kv_heads = 4, .key_dim = 6, .value_dim = 10, .scale = 0.31};
  RotarySpec rotary{.theta = 500.0};
  rotary.scaling.type = RopeScaling::Type::kLinear;
  rotary.scaling.factor = 2.0;
  stretched.rotary = rotary;
  stretched.qk_norm = stretched.output_bias = true;
  SelfAttentionSpec unrotated;
  unrotated.attention = plain_attention(3, 1, 8);
  unrotated.attention.scale = 0.11;
  unrotated.qkv_bias = true;
  spec.pattern.push_back({stretched, GatedMlpSpec{.intermediate_size = 24, .bias = true}});
  spec.pattern.push_back({unrotated, GatedMlpSpec{.intermediate_size = 56}});
  MixtureOfExpertsSpec experts{
      .num_experts = 6, .experts_per_token = 2, .expert_size = 10, .router = {}, .shared = {}};
  experts.router = {.scores = RouterSpec::Scores::kSigmoid,
                    .normalises = true,
                    .scale = 1.7,
                    .has_correction_bias = true,
                    .num_groups = 3,
                    .groups_per_token = 2};
  experts.shared = {.intermediate_size = 12, .name = "shared_expert", .is_gated = true};
  spec.pattern.push_back({stretched, experts});
  LatentAttentionSpec latent;
  latent.query_rank = 10;
  latent.kv_rank = 7;
  latent.rope_dim = 4;
  latent.rotary.theta = 300.0;
  latent.attention = {
      .num_heads = 3, .num_kv_heads = 3, .key_dim = 9, .value_dim = 5, .scale = 0.27};
  latent.attention.latent_dim = latent.latent_dim();
  spec.pattern.push_back({latent, GatedMlpSpec{.intermediate_size = 28}});
  SelfAttentionSpec gated;
  gated.attention = plain_attention(4, 2, 8);
  gated.attention.value_dim = 6;
  gated.rotary = RotarySpec{.theta = 700.0, .dim = 4};
  gated.qk_norm = gated.output_gate = true;
  spec.pattern.push_back({gated, GatedMlpSpec{.intermediate_size = 32}});
  return spec;
}

TEST_CASE("decoder: layers of different kinds in one model") {
  const auto attention = make_local(cpu_block_kernel());
  const ModelSpec spec = mixed_model();
  const auto parameters = random_leaves(spec);
  for (const double share : {1.0, 0.3}) {
    const auto batch = random_batch(spec, {9, 1, 14}, share);
    const auto expected = plain_logprobs(spec, parameters, batch);
    const auto upstream = at::randn(expected.sizes(), at::kDouble);
    torch::autograd::backward({(expected * upstream).sum()}, {});
    const auto expected_gradients = take_gradients(parameters);
    for (const auto& [checkpointing, plain] :
         {std::pair{false, false}, {true, false}, {false, true}}) {
      CAPTURE(share);
      CAPTURE(checkpointing);
      CAPTURE(plain);
      Decoder model(spec, parameters, *attention,
                    {.gradient_checkpointing = checkpointing, .plain_layers = plain});
      const auto logprobs = model.token_logprobs(batch);
      CHECK(relative_error(logprobs, expected) < 1e-12);
      torch::autograd::backward({(logprobs * upstream).sum()}, {});
      check_equal(take_gradients(parameters), expected_gradients);
    }
  }
}

TEST_CASE("decoder: layers of different kinds on two ranks") {
  const ModelSpec spec = mixed_model();
  const auto parameters = random_leaves(spec);
  const auto batch = random_batch(spec, {9, 1, 14}, 0.7);
  PlanRequest request;
  request.world_size = request.sequence_size = 2;
  request.method = method_named("zigzag-ring");  // splits any number of heads
  request.layers = attentions_of(spec);
  const ParallelPlan plan = make_parallel_plan(request);
  torch::autograd::backward({-plain_logprobs(spec, parameters, batch).sum()}, {});
  const auto expected = take_gradients(parameters);
  std::vector<std::map<std::string, at::Tensor>> of_ranks(2);
  testing::run_ranks(plan, [&](const Mesh& mesh) {
    std::vector<NamedTensor> own;
    for (const auto& [name, tensor] : parameters) {
      own.push_back({name, tensor.detach().clone().requires_grad_(true)});
    }
    const auto attention = make_attention(plan, mesh, cpu_block_kernel());
    Decoder model(spec, own, *attention, {});
    const Batch local = shard(batch, attention->token_order(batch.packing));
    torch::autograd::backward({model.negative_log_likelihood_sum(local)}, {});
    of_ranks[mesh.world.rank()] = take_gradients(own);
  });
  for (auto& [name, gradient] : of_ranks[0]) gradient += of_ranks[1].at(name);
  check_equal(of_ranks[0], expected);
}

/// Two recurrent layers and one of softmax attention.
ModelSpec hybrid_model() {
  ModelSpec spec = mixed_model();
  const LayerSpec softmax = spec.pattern.back();
  const LayerSpec recurrent{GatedDeltaNetSpec{{.num_key_heads = 2,
                                               .num_value_heads = 4,
                                               .key_dim = 6,
                                               .value_dim = 4,
                                               .conv_width = 4}},
                            GatedMlpSpec{.intermediate_size = 24}};
  spec.pattern = {recurrent, recurrent, softmax};
  spec.num_layers = 3;
  return spec;
}

TEST_CASE("decoder: a hybrid, and what it remembers of sequences") {
  const ModelSpec spec = hybrid_model();
  const auto parameters = random_leaves(spec);
  const auto batch = random_batch(spec, {9, 1, 80}, 1.0);
  const auto attention = make_local(cpu_block_kernel());
  const at::Tensor expected =
      Decoder(spec, parameters, *attention, {.plain_layers = true}).token_logprobs(batch).detach();
  for (const bool checkpointing : {false, true}) {
    Decoder model(spec, parameters, *attention, {.gradient_checkpointing = checkpointing});
    CHECK(relative_error(model.token_logprobs(batch).detach(), expected) < 1e-11);
  }

  const c10::NoGradGuard no_grad;
  const auto row = random_batch(spec, {30}, 1.0);
  const at::Tensor logits = Decoder(spec, parameters, *attention, {}).logits(row);
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < 30; ++i) {
    tokens.push_back(static_cast<int32_t>(row.tokens_T[i].item<int64_t>()));
  }
  const auto part = [&](int64_t begin, int64_t end) {
    return std::vector<int32_t>(tokens.begin() + begin, tokens.begin() + end);
  };
  CachedDecoder decoder(spec, parameters, /*num_sequences=*/2, /*max_length=*/64);
  const auto check = [&](int64_t sequence, int64_t begin, int64_t end) {
    CAPTURE(end);
    CHECK(relative_error(decoder.extend({{sequence, part(begin, end)}}),
                         logits.narrow(0, end - 1, 1)) < 1e-11);
  };
  // In chunks of many tokens, of some and of one, beside another sequence.
  check(0, 0, 12);
  check(1, 0, 20);
  check(0, 12, 14);
  check(0, 14, 15);
  check(0, 15, 30);
  check(1, 20, 21);
  // Recurrent states cannot be rolled back, so the decoder forgets the whole sequence.
  decoder.truncate(0, 10);
  CHECK(decoder.tokens(0).empty());
  check(0, 0, 11);
  decoder.truncate(1, 21);
  CHECK(decoder.tokens(1).size() == 21);
  check(1, 21, 25);
}

TEST_CASE("cached decoder: layers of different kinds") {
  const ModelSpec spec = mixed_model();
  const auto parameters = random_leaves(spec);
  const auto batch = random_batch(spec, {11}, 1.0);
  const auto attention = make_local(cpu_block_kernel());
  const c10::NoGradGuard no_grad;
  const at::Tensor expected = Decoder(spec, parameters, *attention, {}).logits(batch);
  CachedDecoder decoder(spec, parameters, /*num_sequences=*/1, /*max_length=*/64);
  for (int64_t i = 0; i < 11; ++i) {
    const auto token = static_cast<int32_t>(batch.tokens_T[i].item<int64_t>());
    CHECK(relative_error(decoder.extend({{0, {token}}}), expected.narrow(0, i, 1)) < 1e-12);
  }
}

}  // namespace
}  // namespace longspan
