#include "longspan/testing/layer_check.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <doctest/doctest.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>

#include "longspan/attention/block_kernel.h"
#include "longspan/layers/make_layer.h"
#include "longspan/memory/activation_offload.h"
#include "longspan/sequence_parallel/sequence_parallel.h"
#include "longspan/testing/plain_parts.h"

namespace longspan::testing {
namespace {

constexpr int64_t kHidden = 24;

/// Returns a model of this one layer, for names, rotations and norms.
ModelSpec model_of(const LayerCase& problem) {
  ModelSpec model;
  model.hidden_size = kHidden;
  model.num_layers = 1;
  model.pattern = {problem.layer};
  model.norm_eps = 1e-3;
  model.norm_kind = problem.norm_kind;
  return model;
}

TensorsByName random_leaves(const ModelSpec& model) {
  at::manual_seed(21);
  TensorsByName leaves;
  for (const ParameterSpec& parameter : layer_parameters(model, 0)) {
    at::Tensor leaf = at::randn(parameter.shape, at::kDouble) * 0.3;
    if (parameter.role == ParameterRole::kNorm) leaf = leaf + 1;
    leaves[parameter.name] = leaf.requires_grad_(!is_buffer(parameter.role));
  }
  return leaves;
}

using Results = std::map<std::string, at::Tensor, std::less<>>;

void check_near(const Results& actual, const Results& expected) {
  CHECK(actual.size() == expected.size());
  for (const auto& [name, tensor] : expected) {
    INFO(name);
    REQUIRE(actual.contains(name));
    // Softmax is invariant to a bias of the keys: its gradient is 0 up to rounding.
    CHECK(at::allclose(actual.at(name), tensor, 1e-10, 1e-11));
  }
}

class Check {
 public:
  explicit Check(const LayerCase& problem)
      : model_(model_of(problem)),
        leaves_(random_leaves(model_)),
        layer_(make_layer(model_, 0, leaves_, /*lora_scale=*/0)),
        attention_(make_local(cpu_block_kernel())) {
    const Packing packing = Packing::from_lengths(problem.document_lengths);
    const int64_t T = packing.num_tokens();
    std::vector<at::Tensor> positions;
    for (const int64_t length : problem.document_lengths) {
      positions.push_back(at::arange(length, at::kLong));
    }
    row_ = {attention_.get(), packing, {}, at::kDouble, problem.mlp_tiles};
    for (const RotaryKind& kind : rotary_kinds_of(model_)) {
      row_.rotary.push_back(
          rotary_table(rotary_frequencies(kind), at::cat(positions), at::kDouble));
    }
    h_TD_ = at::randn({T, kHidden}, at::kDouble).requires_grad_(true);
    if (!problem.all_rows) rows_L_ = at::rand({T}).lt(0.3).nonzero().squeeze(1);
    dout_TD_ = at::randn({T, kHidden}, at::kDouble);
  }

  /// kKept: with checkpointing that keeps the feed-forward's tensors.
  enum class Path { kRun, kCheckpointed, kKept, kOffloaded };
  /// How a layer is computed. `plain_parts`: with the parts of its plain version.
  struct Way {
    Path path;
    bool plain_parts;
  };

  at::Tensor plain_output() const { return run_plainly(h_TD_, layer_, row_, rows_L_); }
  at::Tensor output(const Way& way) const {
    Layer layer = way.plain_parts ? with_plain_parts(layer_) : layer_;
    switch (way.path) {
      case Path::kRun:
        return run_layer(h_TD_, layer, row_, rows_L_);
      case Path::kCheckpointed:
        return run_checkpointed(h_TD_, layer, row_, rows_L_);
      case Path::kKept:
        layer.keeps_feed_forward = true;
        return run_checkpointed(h_TD_, layer, row_, rows_L_);
      case Path::kOffloaded: {
        RowContext row = row_;
        row.store = store_.get();
        return run_checkpointed(h_TD_, layer, row, rows_L_);
      }
    }
    throw std::logic_error("no such path");
  }

  /// Returns `out`, made by output() or plain_output(), and its gradients.
  Results results(const at::Tensor& out) const {
    Results results;
    results["output"] = out.detach();
    const at::Tensor dout = rows_L_.defined() ? dout_TD_.index_select(0, rows_L_) : dout_TD_;
    torch::autograd::backward({(out * dout).sum()}, {});
    TensorsByName leaves = leaves_;
    leaves["h"] = h_TD_;
    for (const auto& [name, leaf] : leaves) {
      if (leaf.grad().defined()) results[name] = leaf.grad();
      leaf.mutable_grad().reset();
    }
    return results;
  }

  const TensorsByName& leaves() const { return leaves_; }
  int64_t num_trained() const {
    return std::ranges::count_if(leaves_,
                                 [](const auto& leaf) { return leaf.second.requires_grad(); });
  }

 private:
  ModelSpec model_;
  TensorsByName leaves_;
  Layer layer_;
  std::unique_ptr<SequenceParallel> attention_;
  std::unique_ptr<ActivationStore> store_ = std::make_unique<ActivationOffload>(at::kCPU);
  RowContext row_;
  at::Tensor h_TD_, rows_L_, dout_TD_;
};

}  // namespace

void check_layer(const LayerCase& problem) {
  using Path = Check::Path;
  std::vector<Check::Way> ways;
  for (const bool plain_parts : {false, true}) {
    if (plain_parts && problem.is_long) continue;
    for (const Path path : {Path::kRun, Path::kCheckpointed, Path::kKept, Path::kOffloaded}) {
      ways.push_back({path, plain_parts});
    }
  }
  const Check check(problem);
  const Results expected = check.results(check.plain_output());
  CHECK(std::ssize(expected) == check.num_trained() + 2);  // h's gradient and the output
  for (const Check::Way& way : ways) {
    CAPTURE(static_cast<int>(way.path));
    CAPTURE(way.plain_parts);
    check_near(check.results(check.output(way)), expected);
    const c10::NoGradGuard no_grad;
    CHECK(at::allclose(check.output(way), expected.at("output"), 1e-11, 1e-12));
  }
  // Every other parameter is frozen.
  Results some = expected;
  bool freezes = true;
  for (const auto& [name, leaf] : check.leaves()) {
    if (freezes) {
      leaf.set_requires_grad(false);
      some.erase(name);
    }
    freezes = !freezes;
  }
  for (const Check::Way& way : ways) {
    CAPTURE(static_cast<int>(way.path));
    CAPTURE(way.plain_parts);
    check_near(check.results(check.output(way)), some);
  }
}

}  // namespace longspan::testing
