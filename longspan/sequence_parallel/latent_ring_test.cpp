// A layer of latent attention on several ranks, compared to one process and to the formula's bytes.
#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>

#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "longspan/attention/block_kernel.h"
#include "longspan/layers/make_layer.h"
#include "longspan/plan/attention_volume.h"
#include "longspan/sequence_parallel/sequence_parallel.h"
#include "longspan/testing/method_checks.h"
#include "longspan/testing/ranks.h"
#include "longspan/testing/tolerance.h"

namespace longspan {
namespace {

constexpr int64_t kHidden = 24;

LatentAttentionSpec latent_attention() {
  LatentAttentionSpec spec;
  spec.query_rank = 12;
  spec.kv_rank = 9;
  spec.rope_dim = 4;
  spec.attention = {.num_heads = 4, .num_kv_heads = 4, .key_dim = 10, .value_dim = 6, .scale = 0.3};
  spec.attention.latent_dim = spec.latent_dim();
  return spec;
}

ModelSpec one_layer(const LatentAttentionSpec& mixer) {
  ModelSpec model;
  model.hidden_size = kHidden;
  model.num_layers = 1;
  model.pattern = {{mixer, GatedMlpSpec{.intermediate_size = 20}}};
  return model;
}

struct Results {
  at::Tensor out_TD, dh_TD;
  std::map<std::string, at::Tensor> gradients;  // summed over ranks
  int64_t bytes = 0;
};

class Problem {
 public:
  explicit Problem(const std::vector<int64_t>& lengths)
      : packing_(Packing::from_lengths(lengths)), model_(one_layer(latent_attention())) {
    at::manual_seed(5);
    const auto options = at::TensorOptions(at::kDouble);
    for (const ParameterSpec& parameter : layer_parameters(model_, 0)) {
      leaves_[parameter.name] = at::randn(parameter.shape, options) * 0.3;
    }
    h_TD_ = at::randn({packing_.num_tokens(), kHidden}, options);
    dout_TD_ = at::randn({packing_.num_tokens(), kHidden}, options);
    std::vector<at::Tensor> positions;
    for (const int64_t length : lengths) positions.push_back(at::arange(length, at::kLong));
    positions_T_ = at::cat(positions);
  }

  const Packing& packing() const { return packing_; }

  /// For the tokens in `index_t` (-1: padding), in the packing that contains it. `take_bytes`:
  /// returns the bytes sent since the last call.
  Results solve(Attention& attention, const at::Tensor& index_t, const Packing& padded,
                bool checkpointing, const std::function<int64_t()>& take_bytes) const {
    const at::Tensor real = index_t.ge(0), places = index_t.clamp_min(0);
    const auto share = [&](const at::Tensor& x, double filler) {
      const at::Tensor rows = x.index_select(0, places);
      return rows.masked_fill(real.logical_not().unsqueeze(1).expand_as(rows), filler);
    };
    TensorsByName own;
    for (const auto& [name, leaf] : leaves_) own[name] = leaf.clone().requires_grad_(true);
    const Layer layer = make_layer(model_, 0, own, /*lora_scale=*/0);
    RowContext row{&attention, padded, {}, at::kDouble};
    for (const RotaryKind& kind : rotary_kinds_of(model_)) {
      row.rotary.push_back(rotary_table(rotary_frequencies(kind),
                                        positions_T_.index_select(0, places), at::kDouble));
    }
    const at::Tensor h = share(h_TD_, 1.0).requires_grad_(true);
    take_bytes();
    const at::Tensor out =
        checkpointing ? run_checkpointed(h, layer, row, {}) : run_layer(h, layer, row, {});
    torch::autograd::backward({(out * share(dout_TD_, 0.0)).sum()}, {});
    Results results{at::zeros_like(h_TD_), at::zeros_like(h_TD_), {}, take_bytes()};
    const at::Tensor here = real.nonzero().squeeze(1), there = index_t.index_select(0, here);
    results.out_TD.index_copy_(0, there, out.detach().index_select(0, here));
    results.dh_TD.index_copy_(0, there, h.grad().index_select(0, here));
    for (const auto& [name, leaf] : own) results.gradients[name] = leaf.grad();
    return results;
  }

  Results alone() const {
    const auto attention = make_local(cpu_block_kernel());
    return solve(*attention, at::arange(packing_.num_tokens(), at::kLong), packing_,
                 /*checkpointing=*/false, [] { return int64_t{0}; });
  }

 private:
  Packing packing_;
  ModelSpec model_;
  TensorsByName leaves_;
  at::Tensor h_TD_, dout_TD_, positions_T_;
};

void check(const ParallelPlan& plan, const Problem& problem) {
  const Results expected = problem.alone();
  const auto near = [](const at::Tensor& actual, const at::Tensor& exact) {
    return testing::relative_error(actual, exact) < 1e-11;  // as conformance_test.cpp
  };
  for (const bool checkpointing : {false, true}) {
    CAPTURE(checkpointing);
    Results all{at::zeros_like(expected.out_TD), at::zeros_like(expected.dh_TD), {}, 0};
    Packing padded;
    std::mutex mutex;
    testing::run_ranks(plan, [&](const Mesh& mesh) {
      const auto attention = make_attention(plan, mesh, cpu_block_kernel());
      const TokenOrder order = attention->token_order(problem.packing());
      Traffic before;
      const auto take_bytes = [&] {
        const Traffic now = sequence_traffic(mesh);
        const auto sum = [](const Traffic& t) {
          return t.all_to_all + t.all_gather + t.reduce_scatter + t.shift;
        };
        const int64_t bytes = sum(now) - sum(before);
        before = now;
        return bytes;
      };
      const Results own = problem.solve(*attention, at::tensor(order.index, at::kLong),
                                        order.packing, checkpointing, take_bytes);
      const std::lock_guard lock(mutex);
      padded = order.packing;
      all.out_TD += own.out_TD;
      all.dh_TD += own.dh_TD;
      all.bytes += own.bytes;
      for (const auto& [name, gradient] : own.gradients) {
        at::Tensor& sum = all.gradients[name];
        sum = sum.defined() ? sum + gradient : gradient;
      }
    });
    CHECK(near(all.out_TD, expected.out_TD));
    CHECK(near(all.dh_TD, expected.dh_TD));
    for (const auto& [name, gradient] : expected.gradients) {
      CAPTURE(name);
      CHECK(near(all.gradients.at(name), gradient));
    }
    constexpr int64_t kBytes = 8;
    const AttentionVolume volume = attention_volume(
        plan, AttentionShape(latent_attention().attention, kBytes, kBytes), padded, checkpointing);
    CHECK(all.bytes == volume.forward + volume.backward);
  }
}

TEST_CASE("latent attention on ranks: what one process computes, by every method") {
  const Problem problem({29, 1, 40, 7, 20});
  for (const Method* method : all_methods()) {
    CAPTURE(std::string(method->name));
    PlanRequest request;
    request.world_size = request.sequence_size = 4;
    request.method = method;
    request.layers = {{latent_attention().attention, 1}};
    request.num_heads = request.num_kv_heads = 4;
    check(make_parallel_plan(request), problem);
  }
}

TEST_CASE("latent ring: any number of ranks, rows shorter than the ranks") {
  for (const int R : {2, 3, 5}) {
    CAPTURE(R);
    for (const char* name : {"ring", "striped-ring", "zigzag-ring"}) {
      CAPTURE(name);
      check(testing::plan_of(method_named(name), R),
            Problem(R == 5 ? std::vector<int64_t>{3, 1} : std::vector<int64_t>{23, 5}));
    }
  }
}

TEST_CASE("latents inside Ulysses: in rings, double rings and alone, on any number of ranks") {
  const Problem problem({29, 1, 40, 7, 20});
  for (const int R : {1, 2, 3}) {
    CAPTURE(R);
    check(testing::plan_of(method_named("usp"), R, 2), problem);
  }
  check(testing::plan_of(method_named("usp"), 2, 4), Problem({3, 1}));
  check(testing::plan_of(method_named("loongtrain"), 4, 2, 2), problem);
  check(testing::plan_of(method_named("loongtrain"), 2, 2, 1), Problem({23, 5}));
  for (const int R : {2, 3, 5}) check(testing::plan_of(method_named("llama3"), R), problem);
}

TEST_CASE("latent ring: latents take the place of keys and values in the formula") {
  const Packing row = Packing::single(64);
  // DeepSeek-V3: 512 + 64 latent elements per token, compared to 128 heads of 192 and 128.
  AttentionSpec spec{
      .num_heads = 128, .num_kv_heads = 128, .key_dim = 192, .value_dim = 128, .scale = 1};
  const auto volume = [&](int ring, int ulysses) {
    const ParallelPlan plan =
        testing::plan_of(method_named(ulysses > 1 ? "usp" : "zigzag-ring"), ring, ulysses);
    return attention_volume_parts(plan, AttentionShape(spec, 2, 4), row, true);
  };
  const AttentionVolume keys = volume(4, 1).context;
  spec.latent_dim = 576;
  const AttentionVolume latents = volume(4, 1).context;
  CHECK(keys.forward == int64_t{3} * 64 * 128 * (192 + 128) * 2);
  CHECK(latents.forward == int64_t{3} * 64 * 576 * 2);
  CHECK(latents.backward == int64_t{3} * 64 * 576 * (2 + 4));
  // Each of two ranks receives the latents of the other's tokens and half of the queries, and
  // returns half of the outputs. Then the latents of the other two ranks travel around a ring.
  const auto [heads, ring] = volume(2, 2);
  CHECK(heads.forward == int64_t{64} * (576 + 128 * (192 + 128) / 2) * 2);
  CHECK(ring.forward == int64_t{2} * 64 * 576 * 2);
  CHECK(ring.backward == int64_t{2} * 64 * 576 * (2 + 4));
  // If a rank has so few heads that their keys and values are smaller, these travel.
  const AttentionSpec small = latent_attention().attention;  // 13 elements, against 64 in all heads
  CHECK(passes_latents(small, 4, 1));
  CHECK_FALSE(passes_latents(small, 5, 1));
  CHECK_FALSE(passes_latents(small, 2, 2));
  CHECK_FALSE(passes_latents(plain_attention(4, 4, 8), 1, 1));
  spec.window = 16;
  AttentionSpec without = spec;
  without.latent_dim.reset();
  const ParallelPlan plan = testing::plan_of(method_named("ring"), 4);
  CHECK(attention_volume(plan, AttentionShape(spec), row).forward ==
        attention_volume(plan, AttentionShape(without), row).forward);
}

}  // namespace
}  // namespace longspan
