// Recurrent layers on ranks that share a row, compared to their plain version on one. t: tokens of
// a rank, T: tokens of the row, D: model dim.
#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "longspan/layers/make_layer.h"
#include "longspan/plan/parallel_plan.h"
#include "longspan/plan/recurrent_volume.h"
#include "longspan/sequence_parallel/sequence_parallel.h"
#include "longspan/testing/ranks.h"
#include "longspan/testing/tolerance.h"
#include "longspan/testing/tree_paths.h"

namespace longspan {
namespace {

using testing::relative_error;

constexpr int64_t kHidden = 12;

ModelSpec model_of(int64_t num_key_heads, int64_t num_value_heads) {
  ModelSpec model;
  model.hidden_size = kHidden;
  model.num_layers = 1;
  model.norm_eps = 1e-3;
  model.pattern = {{GatedDeltaNetSpec{{.num_key_heads = num_key_heads,
                                       .num_value_heads = num_value_heads,
                                       .key_dim = 4,
                                       .value_dim = 3,
                                       .conv_width = 4}},
                    GatedMlpSpec{.intermediate_size = 8}}};
  return model;
}

/// Output and gradients, by name.
using Solution = std::map<std::string, at::Tensor>;

struct Case {
  ModelSpec model;
  Packing row;
  TensorsByName values;  // of the parameters
  at::Tensor h_TD, dout_TD;
  Solution expected;

  TensorsByName leaves() const {
    TensorsByName leaves;
    for (const auto& [name, value] : values) {
      leaves[name] = value.clone().requires_grad_(true);
    }
    return leaves;
  }

  Case(const ModelSpec& model, const std::vector<Document>& documents)
      : model(model), row(Packing::from_documents(documents)) {
    at::manual_seed(41);
    for (const ParameterSpec& parameter : layer_parameters(model, 0)) {
      values[parameter.name] = at::randn(parameter.shape, at::kDouble) * 0.4;
    }
    h_TD = at::randn({row.num_tokens(), kHidden}, at::kDouble);
    dout_TD = at::randn({row.num_tokens(), kHidden}, at::kDouble);
    solve_plainly();
  }

 private:
  /// Each path to a leaf becomes a document.
  void solve_plainly() {
    const TensorsByName leaves = this->leaves();
    const at::Tensor h = h_TD.clone().requires_grad_(true);
    const testing::TreePaths paths = testing::paths_of(row);
    const RowContext context{nullptr, Packing::from_lengths(paths.lengths), {}, at::kDouble};
    const Layer layer = make_layer(model, 0, leaves, /*lora_scale=*/0);
    const at::Tensor out =
        run_plainly(h.index_select(0, at::tensor(paths.places, at::kLong)), layer, context, {})
            .index_select(0, at::tensor(paths.first_copies, at::kLong));
    torch::autograd::backward({(out * dout_TD).sum()}, {});
    expected["output"] = out.detach();
    expected["h"] = h.grad();
    for (const auto& [name, leaf] : leaves) expected[name] = leaf.grad();
  }
};

struct Shared {
  Solution solution;
  Traffic forward, backward;
  Packing padded;
};

/// Solves one rank's part.
void solve_share(const Case& c, SequenceParallel& strategy, const Mesh& mesh, bool checkpointing,
                 std::mutex& mutex, Shared& whole) {
  const TokenOrder order = strategy.token_order(c.row);
  const at::Tensor index = at::tensor(order.index, at::kLong);
  const at::Tensor padding = (index < 0).unsqueeze(-1);
  const auto share = [&](const at::Tensor& x_TD, double of_padding) {
    const at::Tensor local = x_TD.index_select(0, index.clamp_min(0));
    return at::where(padding, at::full_like(local, of_padding), local);
  };
  const TensorsByName leaves = c.leaves();
  // Values on padding must not reach any token.
  const at::Tensor h = share(c.h_TD, 100.0).requires_grad_(true);
  const Traffic begin = sequence_traffic(mesh);
  RowContext row{&strategy, order.packing, {}, at::kDouble};
  row.whole_row = strategy.whole_row(order.packing);
  const Layer layer = make_layer(c.model, 0, leaves, /*lora_scale=*/0);
  const at::Tensor out =
      checkpointing ? run_checkpointed(h, layer, row, {}) : run_layer(h, layer, row, {});
  const Traffic middle = sequence_traffic(mesh);
  out.backward(share(c.dout_TD, 0.0));
  const Traffic end = sequence_traffic(mesh);

  const std::lock_guard lock(mutex);
  const auto add = [](Traffic& sum, const Traffic& from, const Traffic& to) {
    sum.all_to_all += to.all_to_all - from.all_to_all;
    sum.all_gather += to.all_gather - from.all_gather;
    sum.reduce_scatter += to.reduce_scatter - from.reduce_scatter;
    sum.shift += to.shift - from.shift;
  };
  add(whole.forward, begin, middle);
  add(whole.backward, middle, end);
  whole.padded = order.packing;
  const at::Tensor real = (index >= 0).nonzero().squeeze(1);
  const auto put = [&](const std::string& name, const at::Tensor& local) {
    at::Tensor& all = whole.solution[name];
    if (!all.defined()) all = at::full_like(c.h_TD, std::nan(""));
    all.index_copy_(0, index.index_select(0, real), local.index_select(0, real));
  };
  put("output", out.detach());
  put("h", h.grad());
  for (const auto& [name, leaf] : leaves) {  // gradients are summed
    at::Tensor& sum = whole.solution[name];
    sum = sum.defined() ? sum + leaf.grad() : leaf.grad();
  }
}

int64_t sent(const Traffic& traffic) {
  return traffic.all_to_all + traffic.all_gather + traffic.reduce_scatter + traffic.shift;
}

ParallelPlan plan_of(const Method* method, int P, RecurrentWay way) {
  PlanRequest request;
  request.world_size = request.sequence_size = P;
  request.method = method;
  request.num_heads = request.num_kv_heads = 60;
  ParallelPlan plan = make_parallel_plan(request);
  plan.recurrent_way = way;
  return plan;
}

/// Checks every number of ranks, and every token order on two of them.
void check_way(RecurrentWay way, const std::vector<Document>& ragged) {
  const std::vector<Document> short_row{{3}};
  std::vector<Case> cases;
  for (const auto& [keys, values] : {std::pair{16, 32}, {6, 12}, {4, 4}, {3, 9}}) {
    cases.emplace_back(model_of(keys, values), ragged);
  }
  cases.emplace_back(model_of(3, 9), short_row);
  for (int P = 1; P <= 6; ++P) {
    std::vector<ParallelPlan> plans{plan_of(method_named("zigzag-ring"), P, way),
                                    plan_of(method_named("ring"), P, way)};
    if (P == 2 || P == 4) {
      plans.clear();
      for (const Method* method : all_methods()) plans.push_back(plan_of(method, P, way));
    }
    for (const ParallelPlan& plan : plans) {
      std::mutex mutex;
      std::vector<Shared> solutions(cases.size());
      testing::run_ranks(plan, [&](const Mesh& mesh) {
        const auto strategy = make_attention(plan, mesh, cpu_block_kernel());
        for (size_t i = 0; i < cases.size(); ++i) {
          solve_share(cases[i], *strategy, mesh, i % 2 == 0, mutex, solutions[i]);
        }
      });
      for (size_t i = 0; i < cases.size(); ++i) {
        CAPTURE(fmt::format("{} P={} case {}", describe_method(plan), P, i));
        for (const auto& [name, expected] : cases[i].expected) {
          CAPTURE(name);
          CHECK(relative_error(solutions[i].solution.at(name), expected) < 1e-10);
        }
        const AttentionVolume volume =
            recurrent_volume(plan, solutions[i].padded, *recurrence_of(cases[i].model),
                             /*element_bytes=*/8, /*checkpointing=*/i % 2 == 0);
        CHECK(sent(solutions[i].forward) == volume.forward);
        CHECK(sent(solutions[i].backward) == volume.backward);
      }
    }
  }
}

TEST_CASE("recurrent layers: heads exchanged give output, gradients and bytes") {
  check_way(RecurrentWay::kHeads, {{37}, {1}, {90, Fork{20, 51}}, {6}});
  // Branches of branches, shorter and longer than the convolution's window.
  check_way(
      RecurrentWay::kHeads,
      {{3}, {70, {{0, kNoParent}, {11, 0}, {13, 0}, {14, 2}, {31, 2}, {32, 4}, {40, 4}, {57, 0}}}});
}

TEST_CASE("recurrent layers: states passed on give output, gradients and bytes") {
  check_way(RecurrentWay::kStates, {{37}, {1}, {90}, {6}});
  // A row with a fork is processed by heads.
  check_way(RecurrentWay::kStates, {{5}, {30, Fork{10, 21}}});
}

TEST_CASE("recurrent layers: of states passed on no more bytes for a longer row") {
  const RecurrenceSpec net{
      .num_key_heads = 4, .num_value_heads = 8, .key_dim = 16, .value_dim = 16, .conv_width = 4};
  const ParallelPlan plan = plan_of(method_named("ring"), 4, RecurrentWay::kStates);
  const auto bytes = [&](const ParallelPlan& by, int64_t tokens) {
    return recurrent_volume(by, Packing::single(tokens), net, 4, /*checkpointing=*/true).forward;
  };
  CHECK(bytes(plan, 1 << 20) == bytes(plan, 1 << 12));
  const ParallelPlan by_heads = plan_of(method_named("ring"), 4, RecurrentWay::kHeads);
  CHECK(bytes(by_heads, 1 << 20) == 256 * bytes(by_heads, 1 << 12));
}

}  // namespace
}  // namespace longspan
