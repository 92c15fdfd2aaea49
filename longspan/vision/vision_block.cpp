#include "longspan/vision/vision_block.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "longspan/kernels/fused_rows.h"
#include "longspan/kernels/gated_activation.h"
#include "longspan/kernels/rms_norm.h"
#include "longspan/kernels/storage_type.h"
#include "longspan/spec/attention_spec.h"
#include "longspan/spec/device_sizes.h"

namespace longspan {
namespace {

using Tensors = std::vector<at::Tensor>;

/// The gated activation (kernels/gated_activation.h) that equals an activation of the tower if
/// every number of `up` is `up`.
struct Gate {
  GateActivation activation;
  double up;
};

Gate gate_of(VisionSpec::Activation activation) {
  switch (activation) {
    case VisionSpec::Activation::kQuickGelu:  // x sigmoid(1.702 x)
      return {ClampedSwiglu{.slope = 1.702, .limit = std::numeric_limits<double>::infinity()}, 0};
    case VisionSpec::Activation::kGeluTanh:
      return {Geglu{}, 1};
    case VisionSpec::Activation::kSilu:
      return {Swiglu{}, 1};
  }
  TORCH_CHECK(false, "no such activation");
}

/// Returns the second factor of the gated activation, for the MLP's inner activations.
at::Tensor up_of(const Gate& gate, const Tensors& inner) {
  if (inner.size() == 1) return at::full_like(inner[0], gate.up);
  TORCH_CHECK(gate.up == 1, "an MLP with a gate needs an activation that multiplies by up");
  return inner[1];
}

bool trains(const at::Tensor& parameter) {
  return parameter.defined() && parameter.requires_grad();
}

class PatchBlock : public UnitOp {
 public:
  PatchBlock(std::shared_ptr<const VisionPass> pass, VisionBlockWeights weights, bool is_full)
      : pass_(std::move(pass)),
        weights_(std::move(weights)),
        blocks_(is_full ? pass_->layout.frames : pass_->layout.windows) {}

  Tensors parameters() const override { return weights_.parameters(); }
  at::Tensor forward(const at::Tensor& h_PD, bool saves) override;
  at::Tensor backward(const at::Tensor& dout_PD, bool wants_input) override;

 private:
  /// Indices in saved_: h, out and lse; with VisionPass::keeps_inner also q, k, v, the hidden state
  /// before the MLP and the MLP's inner activations.
  static constexpr size_t kHidden = 0, kMixed = 1, kLogSumExp = 2, kQuery = 3, kMiddle = 6,
                          kInner = 7;

  AttentionSpec spec() const {
    const VisionSpec& vision = pass_->vision;
    return plain_attention(vision.num_heads, vision.num_heads,
                           vision.hidden_size / vision.num_heads);
  }
  bool rotates() const { return pass_->rotary.cos_TF.defined(); }
  /// Rows of a chunk of the MLP.
  int64_t chunk_rows(const at::Tensor& h_PD) const;
  /// Returns the inner activations of the MLP's first layers.
  Tensors inner_of(const at::Tensor& x_CD) const;
  std::array<at::Tensor, 3> projected(const at::Tensor& x_PD) const;
  at::Tensor middle_of(const at::Tensor& h_PD, const at::Tensor& mixed_PNH) const;
  /// Overwrites `inner`.
  at::Tensor mlp_backward(const at::Tensor& dout_PD, const at::Tensor& middle_PD,
                          const Tensors& inner) const;
  /// Returns d loss / d h. Returns undefined where neither h nor a parameter before the attention
  /// needs a gradient.
  at::Tensor attention_backward(const at::Tensor& dmiddle_PD, const at::Tensor& h_PD,
                                const AttentionResult& result, const Tensors& qkv,
                                bool wants_input) const;
  void cast_weights();

  std::shared_ptr<const VisionPass> pass_;
  VisionBlockWeights weights_, cast_;
  const std::vector<Block>& blocks_;
  Tensors saved_;
  std::shared_ptr<SavedTensors> stored_;
};

int64_t PatchBlock::chunk_rows(const at::Tensor& h_PD) const {
  const int64_t width =
      static_cast<int64_t>(weights_.mlp.size()) * pass_->vision.mlp.intermediate_size;
  return std::max<int64_t>(
      256, device_sizes(h_PD.is_cuda()).feed_forward_bytes / (width * h_PD.element_size()));
}

Tensors PatchBlock::inner_of(const at::Tensor& x_CD) const {
  Tensors inner;
  for (size_t i = 0; i + 1 < cast_.mlp.size(); ++i) inner.push_back(cast_.mlp[i].forward(x_CD));
  return inner;
}

std::array<at::Tensor, 3> PatchBlock::projected(const at::Tensor& x_PD) const {
  const int64_t H = spec().key_dim;
  const auto heads = [&](const Linear& layer) { return layer.forward(x_PD).unflatten(1, {-1, H}); };
  std::array<at::Tensor, 3> qkv{heads(cast_.query), heads(cast_.key), heads(cast_.value)};
  if (rotates()) {
    rotate_(qkv[0], pass_->rotary, /*inverse=*/false);
    rotate_(qkv[1], pass_->rotary, /*inverse=*/false);
  }
  return qkv;
}

at::Tensor PatchBlock::middle_of(const at::Tensor& h_PD, const at::Tensor& mixed_PNH) const {
  at::Tensor middle_PD = at::empty_like(h_PD);
  cast_.output.add_forward_out(middle_PD, h_PD, mixed_PNH.flatten(1));
  return middle_PD;
}

void PatchBlock::cast_weights() {
  cast_ = weights_;
  for (Linear* layer : {&cast_.query, &cast_.key, &cast_.value, &cast_.output}) {
    *layer = layer->cast_for_uses(pass_->compute_dtype);
  }
  for (Linear& layer : cast_.mlp) layer = layer.cast_for_uses(pass_->compute_dtype);
}

at::Tensor PatchBlock::forward(const at::Tensor& h_PD, bool saves) {
  const at::ScalarType dtype = pass_->compute_dtype;
  cast_weights();
  auto [q_PNH, k_PNH, v_PNH] = projected(weights_.attention_norm.forward(h_PD, dtype).y_PD);
  const AttentionResult result = pass_->kernel.forward(q_PNH, k_PNH, v_PNH, spec(), blocks_);
  const bool keeps = saves && pass_->keeps_inner;
  if (!keeps) q_PNH = k_PNH = v_PNH = at::Tensor();
  const at::Tensor middle_PD = middle_of(h_PD, result.out_TNH);
  at::Tensor out_PD = at::empty_like(h_PD);
  Tensors kept;
  for (size_t i = 0; keeps && i + 1 < cast_.mlp.size(); ++i) {
    const int64_t width = cast_.mlp[i].weight.size(0);
    kept.push_back(at::empty({h_PD.size(0), width}, h_PD.options().dtype(dtype)));
  }
  const Gate gate = gate_of(pass_->vision.mlp.activation);
  const int64_t P = h_PD.size(0), chunk = chunk_rows(h_PD);
  for (int64_t begin = 0; begin < P; begin += chunk) {
    const int64_t size = std::min(chunk, P - begin);
    const at::Tensor middle_CD = middle_PD.narrow(0, begin, size);
    const at::Tensor x_CD = weights_.mlp_norm.forward(middle_CD, dtype).y_PD;
    Tensors inner = keeps ? Tensors{} : inner_of(x_CD);
    for (const at::Tensor& all : kept) {
      inner.push_back(all.narrow(0, begin, size));
      cast_.mlp[inner.size() - 1].forward_out(inner.back(), x_CD);
    }
    at::Tensor act = keeps ? at::empty_like(inner[0]) : inner[0];
    gated_out(gate.activation, act, inner[0], up_of(gate, inner));
    cast_.mlp.back().add_forward_out(out_PD.narrow(0, begin, size), middle_CD, act);
  }
  cast_ = {};
  if (!saves) return out_PD;
  saved_ = {h_PD, result.out_TNH, result.lse_NT};
  if (keeps) {
    saved_.insert(saved_.end(), {q_PNH, k_PNH, v_PNH, middle_PD});
    saved_.insert(saved_.end(), kept.begin(), kept.end());
  } else if (pass_->store != nullptr) {
    stored_ = pass_->store->put(std::exchange(saved_, {}));
  }
  return out_PD;
}

at::Tensor PatchBlock::mlp_backward(const at::Tensor& dout_PD, const at::Tensor& middle_PD,
                                    const Tensors& inner) const {
  const at::ScalarType dtype = pass_->compute_dtype;
  const Gate gate = gate_of(pass_->vision.mlp.activation);
  const int64_t P = middle_PD.size(0), chunk = chunk_rows(middle_PD);
  at::Tensor dmiddle_PD = at::empty_like(middle_PD);
  Tensors parameters{weights_.mlp_norm.weight_D, weights_.mlp_norm.bias_D};
  for (const Linear& layer : weights_.mlp) {
    for (const at::Tensor& parameter : layer.parameters()) parameters.push_back(parameter);
  }
  PreciseSums sums(parameters, (P + chunk - 1) / chunk);
  const Linear& last = cast_.mlp.back();
  // Runs once without patches, so that every parameter gets a gradient (of zeros).
  for (int64_t begin = 0; begin < std::max<int64_t>(P, 1); begin += chunk) {
    const int64_t size = std::min(chunk, P - begin);
    const auto rows = [&](const at::Tensor& x) { return x.narrow(0, begin, size); };
    const VisionNorm::Result normed = weights_.mlp_norm.forward(rows(middle_PD), dtype);
    const at::Tensor& x_CD = normed.y_PD;
    Tensors us;
    if (inner.empty()) us = inner_of(x_CD);
    for (const at::Tensor& kept : inner) us.push_back(rows(kept));
    const at::Tensor dout_CD = rows(dout_PD).to(dtype);
    at::Tensor up = up_of(gate, us), act = last.input_gradient(dout_CD), dx_CD;
    gated_backward_(gate.activation, us[0], up, act);
    last.add_gradients(dout_CD, act);
    if (us.size() > 1) cast_.mlp[1].backward(up, x_CD, &dx_CD);
    cast_.mlp[0].backward(us[0], x_CD, &dx_CD);
    rows(dmiddle_PD)
        .copy_(weights_.mlp_norm.backward(dx_CD, rows(middle_PD), normed, rows(dout_PD)));
  }
  sums.finish();
  return dmiddle_PD;
}

at::Tensor PatchBlock::attention_backward(const at::Tensor& dmiddle_PD, const at::Tensor& h_PD,
                                          const AttentionResult& result, const Tensors& qkv,
                                          bool wants_input) const {
  const at::ScalarType dtype = pass_->compute_dtype;
  const int64_t H = spec().key_dim;
  const at::Tensor dy_PD = dmiddle_PD.to(dtype);
  cast_.output.add_gradients(dy_PD, result.out_TNH.flatten(1));
  Tensors before{weights_.attention_norm.weight_D, weights_.attention_norm.bias_D};
  for (const Linear* layer : {&weights_.query, &weights_.key, &weights_.value}) {
    for (const at::Tensor& parameter : layer->parameters()) before.push_back(parameter);
  }
  if (!wants_input && std::ranges::none_of(before, trains)) return {};
  const at::Tensor dmixed_PNH = cast_.output.input_gradient(dy_PD).unflatten(1, {-1, H});
  const VisionNorm::Result normed = weights_.attention_norm.forward(h_PD, dtype);
  const at::Tensor& x_PD = normed.y_PD;
  AttentionGradients gradients;
  {
    Tensors values = qkv;
    if (values.empty()) {
      auto [q, k, v] = projected(x_PD);
      values = {q, k, v};
    }
    gradients = pass_->kernel.backward({.dout_TNH = dmixed_PNH,
                                        .q_TNH = values[0],
                                        .k_SMH = values[1],
                                        .v_SMH = values[2],
                                        .out_TNH = result.out_TNH,
                                        .lse_NT = result.lse_NT},
                                       spec(), blocks_);
  }
  at::Tensor dx_PD;
  const auto backward = [&](const Linear& layer, at::Tensor& gradient, bool is_rotated) {
    at::Tensor dheads_PNH = std::exchange(gradient, {}).contiguous();
    if (is_rotated) rotate_(dheads_PNH, pass_->rotary, /*inverse=*/true);
    layer.backward(dheads_PNH.flatten(1).to(dtype), x_PD, &dx_PD);
  };
  backward(cast_.query, gradients.dq_TNH, rotates());
  backward(cast_.key, gradients.dk_SMH, rotates());
  backward(cast_.value, gradients.dv_SMH, /*is_rotated=*/false);
  return weights_.attention_norm.backward(dx_PD, h_PD, normed, dmiddle_PD);
}

at::Tensor PatchBlock::backward(const at::Tensor& dout_PD, bool wants_input) {
  cast_weights();
  Tensors saved = std::exchange(saved_, {});
  if (stored_) saved = {stored_->get(kHidden), stored_->get(kMixed), stored_->get(kLogSumExp)};
  const auto part = [&](size_t begin, size_t end) {
    return saved.size() <= begin ? Tensors{}
                                 : Tensors(saved.begin() + static_cast<std::ptrdiff_t>(begin),
                                           saved.begin() + static_cast<std::ptrdiff_t>(end));
  };
  Tensors inner = part(kInner, saved.size());
  const AttentionResult result{saved[kMixed], saved[kLogSumExp]};
  const at::Tensor dmiddle_PD = mlp_backward(
      dout_PD,
      inner.empty() ? middle_of(saved[kHidden], saved[kMixed]) : std::exchange(saved[kMiddle], {}),
      inner);
  inner.clear();
  if (stored_) stored_->read_previous_ahead();
  return attention_backward(dmiddle_PD, saved[kHidden], result, part(kQuery, kMiddle), wants_input);
}

}  // namespace

VisionNorm::Result VisionNorm::forward(const at::Tensor& h_PD, at::ScalarType dtype) const {
  if (kind == VisionSpec::Norm::kRmsNorm) {
    const NormalizedRows rows = normalize_rows(h_PD, weight_D.detach(), eps, dtype);
    return {.y_PD = rows.y_TD, .mean_P = {}, .rstd_P = rows.rstd_T};
  }
  const at::Tensor exact = h_PD.to(arithmetic_dtype(h_PD.scalar_type()));
  const auto [y_PD, mean_P, rstd_P] =
      at::native_layer_norm(exact, {exact.size(1)}, weight_D.detach().to(exact.scalar_type()),
                            bias_D.detach().to(exact.scalar_type()), eps);
  return {y_PD.to(dtype), mean_P, rstd_P};
}

at::Tensor VisionNorm::backward(const at::Tensor& dy_PD, const at::Tensor& h_PD,
                                const Result& result, const at::Tensor& residual_PD) const {
  if (kind == VisionSpec::Norm::kRmsNorm) {
    const at::Tensor dweight_D = zeros_for_norm(weight_D, h_PD.options());
    const at::Tensor dh_PD =
        norm_backward(dy_PD, h_PD, result.rstd_P, weight_D.detach(), residual_PD, dweight_D);
    if (dweight_D.defined()) add_gradient(weight_D, dweight_D);
    return dh_PD;
  }
  const at::Tensor exact = h_PD.to(arithmetic_dtype(h_PD.scalar_type())),
                   weight = weight_D.detach().to(exact.scalar_type()),
                   bias = bias_D.detach().to(exact.scalar_type());
  auto [dh, dweight, dbias] = at::native_layer_norm_backward(
      dy_PD.to(exact.scalar_type()), exact, {exact.size(1)}, result.mean_P, result.rstd_P, weight,
      bias, {true, trains(weight_D), trains(bias_D)});
  if (trains(weight_D)) add_gradient(weight_D, dweight);
  if (trains(bias_D)) add_gradient(bias_D, dbias);
  return dh.add_(residual_PD).to(h_PD.scalar_type());
}

Tensors VisionBlockWeights::parameters() const {
  Tensors all;
  for (const VisionNorm* norm : {&attention_norm, &mlp_norm}) {
    all.push_back(norm->weight_D);
    all.push_back(norm->bias_D);
  }
  const auto append = [&](const Linear& layer) {
    for (const at::Tensor& parameter : layer.parameters()) all.push_back(parameter);
  };
  for (const Linear* layer : {&query, &key, &value, &output}) append(*layer);
  for (const Linear& layer : mlp) append(layer);
  return all;
}

std::unique_ptr<UnitOp> vision_block(std::shared_ptr<const VisionPass> pass,
                                     VisionBlockWeights weights, bool is_full) {
  return std::make_unique<PatchBlock>(std::move(pass), std::move(weights), is_full);
}

}  // namespace longspan
