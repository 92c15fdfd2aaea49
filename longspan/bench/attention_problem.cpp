#include "longspan/bench/attention_problem.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "longspan/attention/saved_attention.h"
#include "longspan/layers/mixer_pass.h"
#include "longspan/layers/self_attention.h"

namespace longspan {
namespace {

constexpr double kRopeTheta = 10000.0;
constexpr uint64_t kWeightSeed = 7;

at::Tensor random_tensor(std::vector<int64_t> sizes, at::Generator& generator) {
  return at::randn(sizes, generator, at::TensorOptions(at::kFloat));
}

at::Tensor in_dtype(const ProblemShape& shape, const at::Tensor& values) {
  return values.to(shape.rounded_to).to(shape.dtype).to(shape.device);
}

/// The attention sublayer and its parameters.
struct RandomLayer {
  Layer layer;
  std::vector<at::Tensor> parameters;
};

// Weights are scaled to keep the projections' outputs near 1.
RandomLayer random_layer(const ProblemShape& shape) {
  at::Generator generator = at::detail::createCPUGenerator(kWeightSeed);
  const auto linear = [&](int64_t out, int64_t in) {
    at::Tensor weight = random_tensor({out, in}, generator) / std::sqrt(static_cast<double>(in));
    Linear linear;
    linear.weight = in_dtype(shape, weight).requires_grad_(true);
    return linear;
  };
  const int64_t D = shape.model_dim, H = shape.head_dim;
  const at::Tensor norm =
      in_dtype(shape, 1 + 0.1 * random_tensor({D}, generator)).requires_grad_(true);
  SelfAttention::Weights weights;
  weights.q_proj = linear(shape.num_heads * H, D);
  weights.k_proj = linear(shape.num_kv_heads * H, D);
  weights.v_proj = linear(shape.num_kv_heads * H, D);
  weights.o_proj = linear(D, shape.num_heads * H);
  SelfAttentionSpec spec;
  spec.attention = shape.attention();
  spec.rotary = RotarySpec{};
  const SelfAttention::Norm rms{NormKind::kWeight, 1e-6};
  Layer layer;
  layer.mixer_norm_D = norm;
  layer.norm_eps = rms.eps;
  layer.norm_kind = rms.kind;
  layer.mixer = std::make_shared<SelfAttention>(spec, weights, rms, /*rotary=*/0);
  return {std::move(layer),
          {norm, weights.q_proj.weight, weights.k_proj.weight, weights.v_proj.weight,
           weights.o_proj.weight}};
}

// Positions of a rank's tokens in their documents; 0 for padding.
at::Tensor positions_of(const Packing& row, const TokenOrder& order) {
  std::vector<int64_t> positions;
  positions.reserve(order.index.size());
  const std::vector<int64_t>& ends = row.boundaries();
  for (const int64_t index : order.index) {
    const auto begin = std::prev(std::upper_bound(ends.begin(), ends.end(), index < 0 ? 0 : index));
    positions.push_back(index < 0 ? 0 : index - *begin);
  }
  return at::tensor(at::ArrayRef<int64_t>(positions), at::TensorOptions(at::kLong));
}

RotaryTable make_rotary(const ProblemShape& shape, const at::Tensor& positions_T) {
  RotaryFrequencies frequencies;
  const at::Tensor exponents =
      at::arange(0, shape.head_dim, 2, at::TensorOptions(at::kFloat)) / shape.head_dim;
  frequencies.inverse_F = at::pow(kRopeTheta, exponents.neg()).to(shape.device);
  return rotary_table(frequencies, positions_T.to(shape.device), shape.dtype);
}

}  // namespace

ProblemInputs ProblemInputs::random(const ProblemShape& shape, int64_t num_tokens, uint64_t seed) {
  at::Generator generator = at::detail::createCPUGenerator(seed);
  const auto rows = [&](std::vector<int64_t> rest) {
    rest.insert(rest.begin(), num_tokens);
    return in_dtype(shape, random_tensor(rest, generator));
  };
  const int64_t H = shape.head_dim;
  if (shape.layer) return {{rows({shape.model_dim})}, rows({shape.model_dim})};
  const std::vector<int64_t> query{shape.num_heads, H}, kv{shape.num_kv_heads, H};
  ProblemInputs inputs;
  inputs.tokens = {rows(query), rows(kv), rows(kv)};
  inputs.dout = rows(query);
  return inputs;
}

ProblemInputs ProblemInputs::share(const TokenOrder& order) const {
  const at::Tensor of_host =
      at::tensor(at::ArrayRef<int64_t>(order.index), at::TensorOptions(at::kLong));
  const at::Tensor index = of_host.to(dout.device());
  ProblemInputs local;
  for (const at::Tensor& whole : tokens) {
    local.tokens.push_back(whole.index_select(0, index.clamp_min(0)));
  }
  local.dout = dout.index_select(0, index.clamp_min(0));
  local.dout.index_fill_(0, (of_host < 0).nonzero().squeeze(1).to(dout.device()), 0);
  return local;
}

AttentionProblem::AttentionProblem(const ProblemShape& shape, const Packing& row,
                                   const TokenOrder& order, ProblemInputs inputs)
    : shape_(shape), packing_(order.packing), inputs_(std::move(inputs)) {
  for (at::Tensor& x : inputs_.tokens) x.requires_grad_(true);
  if (!shape.layer) return;
  RandomLayer random = random_layer(shape);
  layer_ = std::move(random.layer);
  parameters_ = std::move(random.parameters);
  rotary_ = make_rotary(shape, positions_of(row, order));
}

at::Tensor AttentionProblem::run(Attention& attention, AttentionCheckpoint checkpoint) const {
  const std::vector<at::Tensor>& x = inputs_.tokens;
  if (!shape_.layer) {
    return attention.attend({x[0], x[1], x[2]}, shape_.attention(), packing_, checkpoint);
  }
  RowContext row{&attention, packing_, {rotary_}, shape_.dtype};
  row.checkpoint = checkpoint;
  return mixer_sublayer(x[0], layer_, row, /*rows_L=*/{});
}

at::Tensor AttentionProblem::forward(Attention& attention) {
  for (at::Tensor& x : inputs_.tokens) x.mutable_grad() = at::Tensor();
  for (at::Tensor& x : parameters_) x.mutable_grad() = at::Tensor();
  out_ = at::Tensor();
  saved_ = {};
  if (!shape_.checkpointing) {
    out_ = run(attention, {});
    return out_.detach();
  }
  const c10::NoGradGuard no_grad;
  return run(attention, AttentionCheckpoint::saving(saved_));
}

void AttentionProblem::backward(Attention& attention) {
  if (shape_.checkpointing) out_ = run(attention, AttentionCheckpoint::replaying(saved_));
  at::Tensor out = std::move(out_);
  out_ = at::Tensor();
  out.backward(inputs_.dout);
}

ProblemGradients AttentionProblem::gradients() const {
  ProblemGradients gradients;
  for (const at::Tensor& x : inputs_.tokens) gradients.tokens.push_back(x.grad());
  for (const at::Tensor& x : parameters_) gradients.parameters.push_back(x.grad());
  return gradients;
}

int64_t AttentionProblem::output_bytes() const {
  return static_cast<int64_t>(inputs_.dout.nbytes());
}

int64_t AttentionProblem::gradient_bytes() const {
  int64_t bytes = 0;
  for (const at::Tensor& x : inputs_.tokens) bytes += static_cast<int64_t>(x.nbytes());
  for (const at::Tensor& x : parameters_) bytes += static_cast<int64_t>(x.nbytes());
  return bytes;
}

std::vector<std::string> gradient_names(const ProblemShape& shape) {
  if (!shape.layer) return {"q", "k", "v"};
  return {"h", "norm", "q_proj", "k_proj", "v_proj", "o_proj"};
}

}  // namespace longspan
