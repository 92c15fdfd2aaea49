// Models of layers without a backward by hand. They train like autograd, with checkpointing, chunks
// and the rest, on one rank and on several. T: tokens, t: tokens of a rank, D: model dim, N: heads,
// n: some of them, K, V: numbers of a head.
#include "longspan/layers/plain_layer.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <torch/csrc/autograd/autograd.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "longspan/attention/block_kernel.h"
#include "longspan/attention/whole_row.h"
#include "longspan/base/user_error.h"
#include "longspan/layers/plain_steps.h"
#include "longspan/memory/activation_offload.h"
#include "longspan/models/decoder.h"
#include "longspan/optim/adamw.h"
#include "longspan/optim/sharded_parameters.h"
#include "longspan/plan/parallel_plan.h"
#include "longspan/sequence_parallel/sequence_parallel.h"
#include "longspan/testing/plain_model.h"
#include "longspan/testing/ranks.h"
#include "longspan/testing/tolerance.h"

namespace longspan {
namespace {

using testing::random_batch;
using testing::relative_error;

constexpr int64_t kHidden = 24, kHeads = 6, kKvHeads = 3, kHeadDim = 4;

AttentionSpec attention_spec() { return plain_attention(kHeads, kKvHeads, kHeadDim); }

/// silu of softmax attention. The norms of queries and keys share their factors: the sum of two
/// parameters, whose gradients are one tensor.
class ToyAttention : public PlainMixer {
 public:
  explicit ToyAttention(TokenMixer& model)
      : PlainMixer(kHidden),
        q_(*model.linears_before()[0]),
        k_(*model.linears_before()[1]),
        v_(*model.linears_before()[2]),
        o_(*model.linears_after()[0]),
        q_norm_K_(model.parameters_before()[0]),
        k_norm_K_(model.parameters_before()[1]) {}

  std::unique_ptr<TokenMixer> clone() const override {
    return std::make_unique<ToyAttention>(*this);
  }
  std::vector<Linear*> linears() override { return {&q_, &k_, &v_, &o_}; }
  std::vector<at::Tensor> other_parameters() const override { return {q_norm_K_, k_norm_K_}; }
  at::Tensor plain(const at::Tensor& x_TD, const RowContext& row) const override {
    const at::Tensor factors_K = as_input(q_norm_K_) + as_input(k_norm_K_);
    const auto heads = [&](const Linear& linear) {
      return plain_linear(linear, x_TD).unflatten(1, {-1, kHeadDim});
    };
    const auto rotated = [&](const at::Tensor& x_TNK) {
      return plain_rotation(x_TNK * factors_K.to(x_TNK.scalar_type()), row.rotary.at(0));
    };
    const at::Tensor mixed_TNK =
        row.attention->attend({rotated(heads(q_)), rotated(heads(k_)), heads(v_)}, attention_spec(),
                              row.packing, row.checkpoint);
    return plain_linear(o_, at::silu(mixed_TNK).flatten(1));
  }

 private:
  Linear q_, k_, v_, o_;
  at::Tensor q_norm_K_, k_norm_K_;
};

constexpr int64_t kValueHeads = 4, kKeyHeads = 2, kKeyDim = 5, kValueDim = 3;

/// s of a token = a * s of the previous token in the document + v. Leaves parameters like the
/// convolution's weights unused.
class ToyRecurrence : public PlainMixer {
 public:
  explicit ToyRecurrence(TokenMixer& model)
      : PlainMixer(kHidden),
        qkv_(*model.linears_before()[0]),
        z_(*model.linears_before()[1]),
        out_(*model.linears_after()[0]),
        unused_(model.parameters_before()[0]),
        decay_N_(model.parameters_before()[1]) {}

  std::unique_ptr<TokenMixer> clone() const override {
    return std::make_unique<ToyRecurrence>(*this);
  }
  std::vector<Linear*> linears() override { return {&qkv_, &z_, &out_}; }
  std::vector<at::Tensor> other_parameters() const override { return {unused_, decay_N_}; }
  at::Tensor plain(const at::Tensor& x_TD, const RowContext& row) const override {
    const at::Tensor v_TNV = plain_linear(qkv_, x_TD)
                                 .narrow(1, 2 * kKeyHeads * kKeyDim, kValueHeads * kValueDim)
                                 .unflatten(1, {kValueHeads, kValueDim});
    const auto over = [&](const std::vector<at::Tensor>& inputs,
                          const std::vector<HeadRange>& heads) {
      const at::Tensor a_n1 =
          as_input(decay_N_).narrow(0, heads[0].begin, heads[0].count).sigmoid().unsqueeze(1);
      std::vector<at::Tensor> states;
      for (int64_t d = 0; d < row.packing.num_documents(); ++d) {
        for (int64_t t = row.packing.begin(d); t < row.packing.end(d); ++t) {
          const at::Tensor v_nV = inputs[0][t];
          states.push_back(t == row.packing.begin(d) ? v_nV : a_n1 * states.back() + v_nV);
        }
      }
      return at::stack(states);
    };
    const at::Tensor s_TNV = row.whole_row == nullptr ? over({v_TNV}, {{0, kValueHeads}})
                                                      : row.whole_row->over_heads({v_TNV}, over);
    return plain_linear(out_, s_TNV.flatten(1) * at::sigmoid(plain_linear(z_, x_TD)));
  }

 private:
  Linear qkv_, z_, out_;
  at::Tensor unused_, decay_N_;
};

/// Chunks of a few rows.
FeedForwardCost small_chunks(int64_t width) {
  FeedForwardCost cost;
  cost.width = width;
  cost.min_chunk_rows = 4;
  return cost;
}

/// down(gelu(gate x) + sin(up x)).
class ToyMlp : public PlainFeedForward {
 public:
  explicit ToyMlp(FeedForward& model)
      : PlainFeedForward(small_chunks(model.width())),
        gate_(*model.linears()[0]),
        up_(*model.linears()[1]),
        down_(*model.linears()[2]) {}

  std::unique_ptr<FeedForward> clone() const override { return std::make_unique<ToyMlp>(*this); }
  std::vector<Linear*> linears() override { return {&gate_, &up_, &down_}; }
  at::Tensor plain(const at::Tensor& x_TD) const override {
    return plain_linear(down_,
                        at::gelu(plain_linear(gate_, x_TD)) + at::sin(plain_linear(up_, x_TD)));
  }

 private:
  Linear gate_, up_, down_;
};

/// A model with layers of each of the two mixers.
ModelSpec toy_model() {
  ModelSpec spec = testing::small_model(/*tied=*/false, /*biases=*/false);
  spec.num_layers = 4;
  SelfAttentionSpec attention;
  attention.attention = attention_spec();
  attention.rotary = RotarySpec{.theta = 500.0};
  attention.qk_norm = true;
  const GatedDeltaNetSpec recurrence{{.num_key_heads = kKeyHeads,
                                      .num_value_heads = kValueHeads,
                                      .key_dim = kKeyDim,
                                      .value_dim = kValueDim,
                                      .conv_width = 4}};
  const GatedMlpSpec mlp{.intermediate_size = 40, .bias = true};
  spec.pattern = {{attention, mlp}, {recurrence, mlp}};
  return spec;
}

/// Replaces the layer's own parts by the toys.
void make_toy(Layer& layer, int64_t number) {
  const std::unique_ptr<TokenMixer> mixer = layer.mixer->clone();
  if (number % 2 == 0) {
    layer.mixer = std::make_shared<ToyAttention>(*mixer);
  } else {
    layer.mixer = std::make_shared<ToyRecurrence>(*mixer);
  }
  const std::unique_ptr<FeedForward> feed_forward = layer.feed_forward->clone();
  layer.feed_forward = std::make_shared<ToyMlp>(*feed_forward);
}

/// How the toys are trained.
struct Setup {
  int num_ranks = 1;  // that divide each row
  const char* method = "zigzag-ring";
  int zero_stage = 0;
  bool checkpointing = true, offloads_activations = false;
  int64_t mlp_tiles = 0;
  bool plain_layers = false;
  std::optional<int64_t> trained_layer = std::nullopt;  // only this layer; none: all
};

struct Trained {
  std::vector<double> losses, norms;
  std::map<std::string, at::Tensor> weights;
};

std::vector<ParameterSource> sources_of(const Setup& setup, const ModelSpec& model,
                                        const std::vector<NamedTensor>& start) {
  const std::vector<ParameterSpec> specs = parameters_of(model);
  std::vector<ParameterSource> sources;
  for (size_t i = 0; i < specs.size(); ++i) {
    const bool trained = !setup.trained_layer || specs[i].layer == setup.trained_layer;
    sources.push_back({specs[i], at::kDouble, trained,
                       [tensor = start[i].tensor] { return tensor.detach().clone(); }});
  }
  return sources;
}

/// Two rows a step, one after the other.
Trained train(const Setup& setup) {
  constexpr int kNumSteps = 3;
  const ModelSpec spec = toy_model();
  const std::vector<NamedTensor> start = testing::random_leaves(spec);
  const Batch rows[] = {random_batch(spec, {9, 1, 14}, 0.8), random_batch(spec, {3, 20, 4}, 0.3)};
  PlanRequest request;
  request.world_size = request.sequence_size = setup.num_ranks;
  request.method = method_named(setup.method);
  request.layers = attentions_of(spec);
  request.zero_stage = setup.zero_stage;
  const ParallelPlan plan = make_parallel_plan(request);
  Trained result;
  testing::run_ranks(plan, [&](const Mesh& mesh) {
    ShardedParameters sharded(sources_of(setup, spec, start), {.stage = setup.zero_stage,
                                                               .shard = mesh.shard,
                                                               .replicas = mesh.replicas,
                                                               .compute_dtype = at::kDouble});
    const auto attention = make_attention(plan, mesh, cpu_block_kernel());
    ActivationOffload store(at::kCPU);
    Decoder model(spec, sharded.parameters(), *attention,
                  {.gradient_checkpointing = setup.checkpointing,
                   .mlp_tiles = setup.mlp_tiles,
                   .activation_store = setup.offloads_activations ? &store : nullptr,
                   .parameter_hooks = &sharded,
                   .plain_layers = setup.plain_layers,
                   .change_layer = make_toy});
    AdamW optimizer(sharded.shards(), {.epsilon = 1e-3});
    Trained mine;
    for (int step = 0; step < kNumSteps; ++step) {
      at::Tensor loss = at::zeros({1}, at::kDouble);
      for (const Batch& row : rows) {
        const at::Tensor part = model.negative_log_likelihood_sum(
            shard(row, attention->token_order(row.packing)), 1 / 30.0);
        (part / 30.0).backward();
        sharded.end_backward();
        loss += part.detach() / 30.0;
      }
      mesh.world.sum_(loss);
      mine.losses.push_back(loss.item<double>());
      sharded.finish_gradients();
      mine.norms.push_back(sharded.gradient_norm());
      optimizer.step(0.01);
      sharded.drop_gradients();
      sharded.publish();
    }
    sharded.for_each_whole([&](const NamedTensor& parameter) {
      mine.weights[parameter.name] = parameter.tensor.clone();
    });
    if (mesh.world.rank() == 0) result = mine;
  });
  return result;
}

/// Only the order of fp64 sums differs.
void check_equal(const Trained& ours, const Trained& theirs) {
  REQUIRE(ours.losses.size() == theirs.losses.size());
  for (size_t i = 0; i < ours.losses.size(); ++i) {
    CAPTURE(i);
    CHECK(ours.losses[i] == doctest::Approx(theirs.losses[i]).epsilon(1e-10));
    CHECK(ours.norms[i] == doctest::Approx(theirs.norms[i]).epsilon(1e-10));
  }
  REQUIRE(ours.weights.size() == theirs.weights.size());
  for (const auto& [name, tensor] : theirs.weights) {
    INFO(name);
    CHECK(relative_error(ours.weights.at(name), tensor) < 1e-9);
  }
}

TEST_CASE("plain layers: a model of them trains on one rank as autograd has it") {
  const Trained expected = train({.plain_layers = true});
  CHECK(expected.losses.back() < expected.losses.front());
  for (const Setup& setup :
       {Setup{}, Setup{.checkpointing = false}, Setup{.offloads_activations = true},
        Setup{.mlp_tiles = 3}, Setup{.checkpointing = false, .mlp_tiles = 5}}) {
    CAPTURE(setup.checkpointing);
    CAPTURE(setup.offloads_activations);
    CAPTURE(setup.mlp_tiles);
    check_equal(train(setup), expected);
  }
}

TEST_CASE("plain layers: a model of them trains on two and three ranks as on one") {
  const Trained expected = train({.plain_layers = true});
  for (const Setup& setup :
       {Setup{.num_ranks = 2}, Setup{.num_ranks = 2, .checkpointing = false}, Setup{.num_ranks = 3},
        Setup{.num_ranks = 3, .checkpointing = false},
        Setup{.num_ranks = 3, .method = "ulysses", .zero_stage = 2},
        Setup{.num_ranks = 2, .method = "async-ulysses", .zero_stage = 3},
        Setup{.num_ranks = 2, .method = "ulysses", .zero_stage = 3, .checkpointing = false},
        Setup{.num_ranks = 3,
              .method = "llama3",
              .zero_stage = 3,
              .offloads_activations = true,
              .mlp_tiles = 2}}) {
    CAPTURE(setup.num_ranks);
    CAPTURE(setup.method);
    CAPTURE(setup.zero_stage);
    CAPTURE(setup.checkpointing);
    check_equal(train(setup), expected);
  }
}

TEST_CASE("plain layers: where one of them alone is trained, the others stay") {
  for (const int64_t layer : {0, 1}) {
    CAPTURE(layer);
    const Trained expected = train({.plain_layers = true, .trained_layer = layer});
    for (const Setup& setup :
         {Setup{.trained_layer = layer}, Setup{.checkpointing = false, .trained_layer = layer},
          Setup{.num_ranks = 2, .zero_stage = 3, .trained_layer = layer}}) {
      CAPTURE(setup.checkpointing);
      CAPTURE(setup.num_ranks);
      check_equal(train(setup), expected);
    }
  }
}

TEST_CASE("plain layers: every trained parameter has a gradient, and each its own memory") {
  const ModelSpec spec = toy_model();
  const auto attention = make_local(cpu_block_kernel());
  for (const bool checkpointing : {false, true}) {
    CAPTURE(checkpointing);
    const std::vector<NamedTensor> parameters = testing::random_leaves(spec);
    // Parameters that the toys do not use.
    const auto is_left_out = [](const std::string& name) {
      for (const char* part : {"in_proj_a.", "in_proj_b.", "dt_bias", "linear_attn.norm."}) {
        if (name.find(part) != std::string::npos) return true;
      }
      return false;
    };
    Decoder model(spec, parameters, *attention,
                  {.gradient_checkpointing = checkpointing, .change_layer = make_toy});
    const Batch row = random_batch(spec, {11}, 1.0);
    torch::autograd::backward({model.negative_log_likelihood_sum(row)}, {});
    std::map<const void*, std::string> owners;
    for (const auto& [name, tensor] : parameters) {
      INFO(name);
      CHECK(tensor.grad().defined() == !is_left_out(name));
      if (tensor.grad().defined()) CHECK(owners.emplace(tensor.grad().data_ptr(), name).second);
    }
  }
}

TEST_CASE("plain steps: an adapter's dropout is refused for rows that it is not known of") {
  Linear linear{.weight = at::randn({3, 2}),
                .bias = {},
                .lora_a = at::randn({1, 2}),
                .lora_b = at::randn({3, 1}),
                .lora_scale = 1.0,
                .magnitude = {}};
  linear.dropout = {0.5, 1, at::arange(4, at::kLong)};
  CHECK(plain_linear(linear, at::randn({4, 2})).sizes() == at::IntArrayRef({4, 3}));
  CHECK_THROWS_WITH_AS(plain_linear(linear, at::randn({5, 2})),
                       doctest::Contains("Set lora_dropout to 0"), UserError);
}

}  // namespace
}  // namespace longspan
