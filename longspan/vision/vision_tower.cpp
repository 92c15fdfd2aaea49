#include "longspan/vision/vision_tower.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <map>
#include <string>

#include "longspan/kernels/storage_type.h"
#include "longspan/vision/patch_layout.h"
#include "longspan/vision/unit_op.h"

namespace longspan {
namespace {

using Tensors = std::vector<at::Tensor>;

constexpr double kQuickGeluFactor = 1.702;

/// Data that all blocks of a pass share.
struct Pass {
  const VisionSpec& vision;
  at::ScalarType compute_dtype;
  double lora_scale;
  PatchLayout layout;
  at::Tensor cos_PH, sin_PH;  // of a head's numbers
};

/// Takes the tensors of a unit in the order in which they were listed.
class Values {
 public:
  explicit Values(const Tensors& values) : values_(values) {}
  const at::Tensor& next() { return values_.at(next_++); }

 private:
  const Tensors& values_;
  size_t next_ = 0;
};

/// Weight, A and B of its adapter (undefined: it has none), bias.
at::Tensor linear(const at::Tensor& x, Values& values, const Pass& pass) {
  const at::ScalarType dtype = pass.compute_dtype;
  const at::Tensor weight = values.next().to(dtype), a = values.next(), b = values.next(),
                   bias = values.next().to(dtype), used = x.to(dtype);
  const at::Tensor y = at::linear(used, weight, bias);
  if (!a.defined()) return y;
  return y + at::linear(at::linear(used, a.to(dtype)) * pass.lora_scale, b.to(dtype));
}

/// Returns the norm over the last dim in `dtype`, computed in fp32 or fp64.
at::Tensor norm(const at::Tensor& x, Values& values, const VisionSpec& vision,
                at::ScalarType dtype) {
  const at::Tensor exact = x.to(arithmetic_dtype(x.scalar_type()));
  const at::Tensor weight = values.next().to(exact.scalar_type());
  if (vision.norm == VisionSpec::Norm::kLayerNorm) {
    const at::Tensor bias = values.next().to(exact.scalar_type());
    return at::layer_norm(exact, {exact.size(-1)}, weight, bias, vision.norm_eps).to(dtype);
  }
  const at::Tensor mean = exact.square().mean(-1, /*keepdim=*/true);
  return (exact * at::rsqrt(mean + vision.norm_eps) * weight).to(dtype);
}

at::Tensor activated(VisionSpec::Activation activation, const at::Tensor& x) {
  switch (activation) {
    case VisionSpec::Activation::kQuickGelu:
      return x * at::sigmoid(kQuickGeluFactor * x);
    case VisionSpec::Activation::kGeluTanh:
      return at::gelu(x, "tanh");
    case VisionSpec::Activation::kSilu:
      return at::silu(x);
  }
  TORCH_CHECK(false, "no such activation");
}

at::Tensor rotated(const at::Tensor& x_PNH, const Pass& pass) {
  const at::Tensor exact = x_PNH.to(pass.cos_PH.scalar_type());
  const Tensors halves = exact.chunk(2, -1);
  const at::Tensor turned = at::cat({-halves[1], halves[0]}, -1);
  return (exact * pass.cos_PH.unsqueeze(1) + turned * pass.sin_PH.unsqueeze(1))
      .to(x_PNH.scalar_type());
}

/// Returns the attention of runs of patches, [P, N, H].
at::Tensor attended(const Tensors& qkv_PNH, const PatchRuns& patch_runs) {
  Tensors inputs = qkv_PNH;
  if (patch_runs.order_P.defined()) {
    for (at::Tensor& input : inputs) input = input.index_select(0, patch_runs.order_P);
  }
  Tensors outputs;
  int64_t begin = 0;
  for (const auto& [count, length] : patch_runs.lengths) {
    Tensors heads;  // [count, N, length, H]
    for (const at::Tensor& input : inputs) {
      heads.push_back(
          input.narrow(0, begin, count * length).unflatten(0, {count, length}).transpose(1, 2));
    }
    outputs.push_back(at::scaled_dot_product_attention(heads[0], heads[1], heads[2])
                          .transpose(1, 2)
                          .flatten(0, 1));
    begin += count * length;
  }
  if (outputs.empty()) return inputs[0] + inputs[1] + inputs[2];  // no patches
  const at::Tensor mixed = outputs.size() == 1 ? outputs[0] : at::cat(outputs);
  return patch_runs.places_P.defined() ? mixed.index_select(0, patch_runs.places_P) : mixed;
}

at::Tensor block(const Pass& pass, bool is_full, const at::Tensor& h_PD, const Tensors& values) {
  const VisionSpec& vision = pass.vision;
  const at::ScalarType dtype = pass.compute_dtype;
  // The order of parameters_of(): both norms come first.
  Values norms(values), rest(values);
  const auto skip = [&](int count) {
    for (int i = 0; i < count; ++i) rest.next();
  };
  skip(vision.norm == VisionSpec::Norm::kLayerNorm ? 4 : 2);
  const at::Tensor qkv =
      linear(norm(h_PD, norms, vision, dtype), rest, pass)
          .view({-1, 3, vision.num_heads, vision.hidden_size / vision.num_heads});
  const at::Tensor mixed =
      attended({rotated(qkv.select(1, 0), pass), rotated(qkv.select(1, 1), pass), qkv.select(1, 2)},
               is_full ? pass.layout.frames : pass.layout.windows);
  const at::Tensor h = h_PD + linear(mixed.flatten(1), rest, pass);
  const at::Tensor x = norm(h, norms, vision, dtype);
  at::Tensor inner = activated(vision.mlp.activation, linear(x, rest, pass));
  if (vision.mlp.has_gate) inner = inner * linear(x, rest, pass);
  return h + linear(inner, rest, pass);
}

/// `after_merging`: the norm is over merged patches.
at::Tensor merged(const Pass& pass, bool after_merging, const at::Tensor& h_PD,
                  const Tensors& tensors) {
  const VisionSpec& vision = pass.vision;
  Values values(tensors);
  const int64_t merged_dim = vision.hidden_size * vision.merged_patches();
  const at::Tensor x = after_merging ? h_PD.reshape({-1, merged_dim}) : h_PD;
  const at::Tensor normed = norm(x, values, vision, pass.compute_dtype).view({-1, merged_dim});
  const at::Tensor inner = at::gelu(linear(normed, values, pass));
  return linear(inner, values, pass);
}

/// Returns the indices and weights, [P, 2] each, of the two positions of a table of `side` between
/// which each place lies, for frames of `sizes_P` patches: the ends of the frame are those of the
/// table.
std::pair<at::Tensor, at::Tensor> between(const at::Tensor& places_P, const at::Tensor& sizes_P,
                                          int64_t side) {
  const at::Tensor place = places_P.to(at::kFloat) * (side - 1) / at::clamp_min(sizes_P - 1, 1);
  const at::Tensor lower = at::floor(place), fraction = place - lower;
  const at::Tensor first = lower.to(at::kLong);
  return {at::stack({first, first + 1}, 1).clamp(0, side - 1),
          at::stack({1 - fraction, fraction}, 1)};
}

/// Returns the table's positions at the patches, [P, D].
at::Tensor positions(const Pass& pass, const at::Tensor& table) {
  const int64_t side = pass.vision.position_side;
  const PatchLayout& layout = pass.layout;
  const auto [rows, row_weights] = between(layout.rows_P, layout.heights_P, side);
  const auto [columns, column_weights] = between(layout.columns_P, layout.widths_P, side);
  const at::Tensor index = (rows.unsqueeze(2) * side + columns.unsqueeze(1)).flatten(1);
  const at::Tensor weight = (row_weights.unsqueeze(2) * column_weights.unsqueeze(1)).flatten(1);
  const at::Tensor corners_P4D =
      table.index_select(0, index.flatten()).view({-1, 4, table.size(1)});
  return (corners_P4D * weight.unsqueeze(2)).sum(1);
}

}  // namespace

struct VisionTower::Impl {
  VisionSpec vision;
  VisionOptions options;
  /// Parameters of each unit, counted from the tower's first; base_units: without adapters.
  std::map<int, Tensors> units, base_units;
  bool adapters_on = true;
  at::ScalarType residual_dtype;
  at::Device device = at::kCPU;

  Pass pass_over(std::span<const PictureGrid> grids) const;
  at::Tensor embedded(const Pass& pass, const at::Tensor& patches_PX, const Tensors& tensors) const;
  at::Tensor run(int unit, int next, int below, const at::Tensor& x,
                 const UnitFunction& function) const;
};

VisionTower::VisionTower(const VisionSpec& vision, const std::vector<NamedTensor>& parameters,
                         const VisionOptions& options)
    : impl_(std::make_unique<Impl>()) {
  impl_->vision = vision;
  impl_->options = options;
  std::map<std::string, at::Tensor> by_name;
  for (const auto& [name, tensor] : parameters) by_name[name] = tensor;
  at::ScalarType dtype = at::kFloat;
  for (const ParameterSpec& parameter : parameters_of(vision, /*first_unit=*/0)) {
    const auto found = by_name.find(parameter.name);
    TORCH_CHECK(found != by_name.end(), "parameter ", parameter.name, " is missing");
    TORCH_CHECK(found->second.sizes() == at::IntArrayRef(parameter.shape), "parameter ",
                parameter.name, " has shape ", found->second.sizes(), ", not ",
                at::IntArrayRef(parameter.shape));
    Tensors &with = impl_->units[parameter.unit], &without = impl_->base_units[parameter.unit];
    with.push_back(found->second);
    without.push_back(found->second);
    if (parameter.role == ParameterRole::kProjection) {
      for (const std::string& name : {lora_a_name(parameter), lora_b_name(parameter)}) {
        const auto matrix = by_name.find(name);
        with.push_back(matrix == by_name.end() ? at::Tensor() : matrix->second);
        without.emplace_back();
      }
    }
    dtype = found->second.scalar_type();
    impl_->device = found->second.device();
  }
  if (dtype == at::kDouble) impl_->options.compute_dtype = at::kDouble;
  impl_->residual_dtype = c10::promoteTypes(dtype, impl_->options.compute_dtype);
}

VisionTower::~VisionTower() = default;

void VisionTower::use_adapters(bool on) { impl_->adapters_on = on; }

const VisionSpec& VisionTower::spec() const { return impl_->vision; }

bool VisionTower::trains() const {
  for (const auto& [unit, tensors] : impl_->units) {
    for (const at::Tensor& tensor : tensors) {
      if (tensor.requires_grad()) return true;
    }
  }
  return false;
}

Pass VisionTower::Impl::pass_over(std::span<const PictureGrid> grids) const {
  Pass pass{.vision = vision,
            .compute_dtype = options.compute_dtype,
            .lora_scale = options.lora_scale,
            .layout = layout_of(vision, grids, device),
            .cos_PH = {},
            .sin_PH = {}};
  // Half of the angles turn by rows, half by columns (transformers' axial rotation).
  const int64_t half = vision.hidden_size / vision.num_heads / 2;
  const at::Tensor exponents =
      at::arange(0, half, 2, at::TensorOptions(at::kFloat).device(device)) /
      static_cast<double>(half);
  const at::Tensor inverse = 1.0 / at::pow(at::Scalar(vision.rotary_theta), exponents);
  const auto angles = [&](const at::Tensor& places_P) {
    return places_P.to(at::kFloat).unsqueeze(1) * inverse;
  };
  const at::Tensor once = at::cat({angles(pass.layout.rows_P), angles(pass.layout.columns_P)}, 1);
  const at::Tensor all = at::cat({once, once}, 1);
  const at::ScalarType table = arithmetic_dtype(options.compute_dtype);
  pass.cos_PH = all.cos().to(table);
  pass.sin_PH = all.sin().to(table);
  return pass;
}

at::Tensor VisionTower::Impl::embedded(const Pass& pass, const at::Tensor& patches_PX,
                                       const Tensors& tensors) const {
  Values values(tensors);
  const at::ScalarType dtype = options.compute_dtype;
  const at::Tensor weight = values.next().flatten(1).to(dtype);
  const at::Tensor bias = vision.has_patch_bias ? values.next().to(dtype) : at::Tensor();
  at::Tensor h = at::linear(patches_PX.to(dtype), weight, bias).to(residual_dtype);
  if (vision.position_side > 0) h = h + positions(pass, values.next()).to(residual_dtype);
  return h;
}

at::Tensor VisionTower::Impl::run(int unit, int next, int below, const at::Tensor& x,
                                  const UnitFunction& function) const {
  const int first = options.first_unit;
  return run_unit(
      function, x, (adapters_on ? units : base_units).at(unit),
      {.hooks = options.parameter_hooks,
       .unit = first + unit,
       .next = next < 0 ? -1 : first + next,
       .below = below < 0 ? -1 : first + below,
       // Sharded values are released between the passes.
       .keeps_graph = !options.gradient_checkpointing && options.parameter_hooks == nullptr});
}

at::Tensor VisionTower::features(const at::Tensor& patches_PX, std::span<const PictureGrid> grids) {
  const Impl& tower = *impl_;
  const VisionSpec& vision = tower.vision;
  const auto pass = std::make_shared<const Pass>(tower.pass_over(grids));
  at::Tensor h_PD =
      tower.run(0, 1, -1, patches_PX, [&tower, pass](const at::Tensor& x, const Tensors& values) {
        return tower.embedded(*pass, x, values);
      });
  Tensors deep;
  for (int64_t i = 0; i < vision.depth; ++i) {
    const int unit = vision.block_unit(i);
    h_PD =
        tower.run(unit, unit + 1, unit - 1, h_PD,
                  [pass, is_full = vision.is_full(i)](const at::Tensor& h, const Tensors& values) {
                    return block(*pass, is_full, h, values);
                  });
    for (size_t k = 0; k < vision.deepstack.size(); ++k) {
      if (vision.deepstack[k] != i) continue;
      deep.push_back(tower.run(vision.deepstack_unit(static_cast<int64_t>(k)), -1, unit, h_PD,
                               [pass](const at::Tensor& h, const Tensors& values) {
                                 return merged(*pass, /*after_merging=*/true, h, values);
                               }));
    }
  }
  const at::Tensor features =
      tower.run(vision.merger_unit(), -1, vision.block_unit(vision.depth - 1), h_PD,
                [pass](const at::Tensor& h, const Tensors& values) {
                  return merged(*pass, /*after_merging=*/false, h, values);
                });
  deep.insert(deep.begin(), features);
  return deep.size() == 1 ? features : at::cat(deep, 1);
}

}  // namespace longspan
