#include "longspan/vision/vision_tower.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <iterator>
#include <map>
#include <span>
#include <string>
#include <utility>

#include "longspan/kernels/storage_type.h"
#include "longspan/vision/patch_layout.h"
#include "longspan/vision/unit_op.h"
#include "longspan/vision/vision_block.h"

namespace longspan {
namespace {

using Tensors = std::vector<at::Tensor>;

/// Takes the tensors of a unit in the order in which they were listed.
class Values {
 public:
  explicit Values(const Tensors& values) : values_(values) {}
  const at::Tensor& next() { return values_.at(next_++); }
  VisionNorm norm(const VisionSpec& vision) {
    VisionNorm norm{.kind = vision.norm, .eps = vision.norm_eps, .weight_D = next(), .bias_D = {}};
    if (vision.norm == VisionSpec::Norm::kLayerNorm) norm.bias_D = next();
    return norm;
  }
  /// Weight, A and B of its adapter (undefined: it has none), bias.
  Linear linear(double lora_scale) {
    Linear layer{.weight = next(), .bias = {}, .lora_a = next(), .lora_b = next(), .magnitude = {}};
    layer.bias = next();
    layer.lora_scale = lora_scale;
    return layer;
  }

 private:
  const Tensors& values_;
  size_t next_ = 0;
};

VisionBlockWeights block_weights(const VisionSpec& vision, const Tensors& tensors,
                                 double lora_scale) {
  Values values(tensors);
  VisionBlockWeights weights{.attention_norm = values.norm(vision),
                             .mlp_norm = values.norm(vision),
                             .query = {},
                             .key = {},
                             .value = {},
                             .output = {},
                             .mlp = {}};
  Linear* const qkv[] = {&weights.query, &weights.key, &weights.value};
  if (vision.names.qkv.size() == std::size(qkv)) {
    for (Linear* const layer : qkv) *layer = values.linear(lora_scale);
  } else {
    const Linear all = values.linear(lora_scale);
    const int64_t D = vision.hidden_size;
    for (int64_t i = 0; i < std::ssize(qkv); ++i) *qkv[i] = all.for_outputs(i * D, D);
  }
  weights.output = values.linear(lora_scale);
  for (size_t i = 0; i < vision.mlp.names.size(); ++i) {
    weights.mlp.push_back(values.linear(lora_scale));
  }
  return weights;
}

/// A linear layer by differentiable operations.
at::Tensor linear(const at::Tensor& x, Values& values, const VisionOptions& options) {
  const at::ScalarType dtype = options.compute_dtype;
  const Linear layer = values.linear(options.lora_scale);
  const at::Tensor used = x.to(dtype),
                   y = at::linear(used, layer.weight.to(dtype), layer.bias.to(dtype));
  if (!layer.has_adapter()) return y;
  return y + at::linear(at::linear(used, layer.lora_a.to(dtype)) * layer.lora_scale,
                        layer.lora_b.to(dtype));
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

/// `after_merging`: the norm is over merged patches.
at::Tensor merged(const VisionSpec::MlpMerger& /*names*/, const VisionSpec& vision,
                  const VisionOptions& options, bool after_merging, const at::Tensor& h_PD,
                  Values& values) {
  const int64_t merged_dim = vision.hidden_size * vision.merged_patches();
  const at::Tensor x = after_merging ? h_PD.reshape({-1, merged_dim}) : h_PD;
  const at::Tensor normed = norm(x, values, vision, options.compute_dtype).view({-1, merged_dim});
  const at::Tensor inner = at::gelu(linear(normed, values, options));
  return linear(inner, values, options);
}

at::Tensor merged(const VisionSpec::MeanMerger& /*names*/, const VisionSpec& vision,
                  const VisionOptions& options, bool /*after_merging*/, const at::Tensor& h_PD,
                  Values& values) {
  const at::ScalarType dtype = options.compute_dtype;
  const at::Tensor exact = h_PD.to(arithmetic_dtype(h_PD.scalar_type())),
                   mean_FD = exact.view({-1, vision.merged_patches(), exact.size(1)}).mean(1),
                   weight_D = values.next().to(exact.scalar_type());
  const at::Tensor rstd = at::rsqrt(mean_FD.square().mean(-1, /*keepdim=*/true) + vision.norm_eps);
  const at::Tensor normed = (mean_FD * rstd * (1 + weight_D)).to(dtype);
  return at::matmul(normed, values.next().to(dtype));
}

/// Returns the features of the merger's unit.
at::Tensor merged(const VisionSpec& vision, const VisionOptions& options, bool after_merging,
                  const at::Tensor& h_PD, const Tensors& tensors) {
  Values values(tensors);
  at::Tensor h = h_PD;
  if (!vision.names.last_norm.empty() && !after_merging) {
    h = norm(h, values, vision, arithmetic_dtype(h.scalar_type()));
  }
  return std::visit(
      [&](const auto& names) { return merged(names, vision, options, after_merging, h, values); },
      vision.merger);
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
at::Tensor positions(int64_t side, const PatchLayout& layout, const at::Tensor& table) {
  const auto [rows, row_weights] = between(layout.rows_P, layout.heights_P, side);
  const auto [columns, column_weights] = between(layout.columns_P, layout.widths_P, side);
  at::Tensor sum_PD;
  for (const int64_t row : {0, 1}) {
    for (const int64_t column : {0, 1}) {
      const at::Tensor index = rows.select(1, row) * side + columns.select(1, column);
      const at::Tensor weight = row_weights.select(1, row) * column_weights.select(1, column);
      const at::Tensor corner_PD = table.index_select(0, index) * weight.unsqueeze(1);
      sum_PD = sum_PD.defined() ? sum_PD + corner_PD : corner_PD;
    }
  }
  return sum_PD;
}

int64_t num_patches(std::span<const PictureGrid> grids) {
  int64_t total = 0;
  for (const PictureGrid& grid : grids) total += grid.num_patches();
  return total;
}

/// Pictures [begin, end) of a pass.
struct Part {
  size_t begin = 0, end = 0;
  std::vector<PictureGrid> grids = {};
};

/// Divides the pictures into parts of at most `most` patches, or of one picture. At least one part.
std::vector<Part> parts_of(const std::vector<PictureGrid>& grids, int64_t most) {
  std::vector<Part> parts(1);
  for (const PictureGrid& grid : grids) {
    Part& last = parts.back();
    if (last.end > last.begin && num_patches(last.grids) + grid.num_patches() > most) {
      parts.push_back({.begin = last.end, .end = last.end});
    }
    parts.back().grids.push_back(grid);
    ++parts.back().end;
  }
  return parts;
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

  VisionPass pass_over(std::span<const PictureGrid> grids) const;
  at::Tensor embedded(const PatchLayout& layout, const at::Tensor& patches_PX,
                      const Tensors& tensors) const;
  const Tensors& tensors_of(int unit) const { return (adapters_on ? units : base_units).at(unit); }
  at::Tensor run(int unit, int next, int below, const at::Tensor& x,
                 std::unique_ptr<UnitOp> op) const;
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

VisionPass VisionTower::Impl::pass_over(std::span<const PictureGrid> grids) const {
  VisionPass pass{.vision = vision,
                  .compute_dtype = options.compute_dtype,
                  .layout = layout_of(vision, grids, device),
                  .rotary = {},
                  .kernel = *options.kernel,
                  .keeps_inner = !options.gradient_checkpointing,
                  .store = options.gradient_checkpointing ? options.activation_store : nullptr};
  if (!vision.rotary_theta) return pass;
  // Half of the angles turn by rows, half by columns (transformers' axial rotation).
  const int64_t half = vision.hidden_size / vision.num_heads / 2;
  const at::Tensor exponents =
      at::arange(0, half, 2, at::TensorOptions(at::kFloat).device(device)) /
      static_cast<double>(half);
  const at::Tensor inverse = 1.0 / at::pow(at::Scalar(*vision.rotary_theta), exponents);
  const auto angles = [&](const at::Tensor& places_P) {
    return places_P.to(at::kFloat).unsqueeze(1) * inverse;
  };
  const at::Tensor angles_PF =
      at::cat({angles(pass.layout.rows_P), angles(pass.layout.columns_P)}, 1);
  const at::ScalarType table = arithmetic_dtype(options.compute_dtype);
  pass.rotary = {.cos_TF = angles_PF.cos().to(table), .sin_TF = angles_PF.sin().to(table)};
  return pass;
}

at::Tensor VisionTower::Impl::embedded(const PatchLayout& layout, const at::Tensor& patches_PX,
                                       const Tensors& tensors) const {
  Values values(tensors);
  const at::ScalarType dtype = options.compute_dtype;
  const at::Tensor weight = values.next().flatten(1).to(dtype);
  const at::Tensor bias = vision.has_patch_bias ? values.next().to(dtype) : at::Tensor();
  at::Tensor h = at::linear(patches_PX.to(dtype), weight, bias).to(residual_dtype);
  if (vision.position_side > 0) {
    h = h + positions(vision.position_side, layout, values.next()).to(residual_dtype);
  }
  return h;
}

at::Tensor VisionTower::Impl::run(int unit, int next, int below, const at::Tensor& x,
                                  std::unique_ptr<UnitOp> op) const {
  const int first = options.first_unit;
  return run_unit(std::move(op), x,
                  {.hooks = options.parameter_hooks,
                   .unit = first + unit,
                   .next = next < 0 ? -1 : first + next,
                   .below = below < 0 ? -1 : first + below});
}

at::Tensor VisionTower::features(const at::Tensor& patches_PX,
                                 const std::vector<PictureGrid>& grids) {
  return features(
      [&patches_PX, &grids](size_t begin, size_t end) {
        const int64_t before = num_patches(std::span(grids).first(begin));
        return patches_PX.narrow(0, before, num_patches(std::span(grids).first(end)) - before);
      },
      grids);
}

at::Tensor VisionTower::features(const PatchSource& patches, std::vector<PictureGrid> grids) {
  const Impl& tower = *impl_;
  const VisionSpec& vision = tower.vision;
  const auto pass = std::make_shared<const VisionPass>(tower.pass_over(grids));
  const PatchLayout& layout = pass->layout;
  const auto parts = std::make_shared<const std::vector<Part>>(
      parts_of(grids, tower.options.part_bytes / (vision.patch_dim() * int64_t{sizeof(float)})));
  at::Tensor h_PD = tower.run(
      0, 1, -1, at::empty({0}),
      recomputed_by_parts(
          {.num_parts = std::ssize(*parts),
           .num_rows = num_patches(grids),
           .read =
               [patches, parts](int64_t part) {
                 const auto& [begin, end, grids_of_part] = parts->at(static_cast<size_t>(part));
                 return patches(begin, end);
               }},
          [&tower, parts](int64_t part, const at::Tensor& x, const Tensors& values) {
            const PatchLayout own =
                layout_of(tower.vision, parts->at(static_cast<size_t>(part)).grids, tower.device);
            return tower.embedded(own, own.order_P.defined() ? x.index_select(0, own.order_P) : x,
                                  values);
          },
          tower.tensors_of(0)));
  Tensors features;
  // `below`: the block that made h.
  const auto merge = [&](int unit, int below, bool after_merging) {
    return tower.run(unit, -1, below, h_PD,
                     recomputed(
                         [&tower, after_merging](const at::Tensor& h, const Tensors& values) {
                           return merged(tower.vision, tower.options, after_merging, h, values);
                         },
                         tower.tensors_of(unit)));
  };
  for (int64_t i = 0; i < vision.depth; ++i) {
    const int unit = vision.block_unit(i);
    h_PD = tower.run(
        unit, unit + 1, unit - 1, h_PD,
        vision_block(pass, block_weights(vision, tower.tensors_of(unit), tower.options.lora_scale),
                     vision.is_full(i)));
    for (size_t k = 0; k < vision.deepstack.size(); ++k) {
      if (vision.deepstack[k] != i) continue;
      features.push_back(merge(vision.deepstack_unit(static_cast<int64_t>(k)), unit,
                               /*after_merging=*/true));
    }
  }
  features.insert(features.begin(), merge(vision.merger_unit(), vision.block_unit(vision.depth - 1),
                                          /*after_merging=*/false));
  const at::Tensor features_FE = features.size() == 1 ? features[0] : at::cat(features, 1);
  return layout.places_F.defined() ? features_FE.index_select(0, layout.places_F) : features_FE;
}

}  // namespace longspan
