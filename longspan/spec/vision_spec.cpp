#include "longspan/spec/vision_spec.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <utility>

namespace longspan {
namespace {

class VisionParameters {
 public:
  VisionParameters(const VisionSpec& vision, int first_unit)
      : vision_(vision), first_unit_(first_unit) {}

  void add(std::string name, std::vector<int64_t> shape, ParameterRole role, int unit) {
    ParameterSpec parameter = parameter_spec(
        fmt::format("{}{}", kVisionPrefix, name), std::move(shape), role, first_unit_ + unit,
        {Initialisation::Kind::kNormal, vision_.initializer_range});
    if (role == ParameterRole::kBias) parameter.init = {};
    parameter.part = unit >= vision_.merger_unit() ? ModelPart::kProjector : ModelPart::kTower;
    parameters_.push_back(std::move(parameter));
  }
  /// `part`: where it is not that of the unit.
  void norm(const std::string& name, int64_t size, int unit, std::optional<ModelPart> part = {}) {
    const auto add_part = [&](const char* of, ParameterRole role) {
      add(name + of, {size}, role, unit);
      parameters_.back().part = part.value_or(parameters_.back().part);
    };
    add_part(".weight", ParameterRole::kNorm);
    if (vision_.norm == VisionSpec::Norm::kLayerNorm) add_part(".bias", ParameterRole::kBias);
  }
  void linear(const std::string& name, int64_t num_out, int64_t num_in, int unit) {
    add(name + ".weight", {num_out, num_in}, ParameterRole::kProjection, unit);
    // Some linear layers have only a number, which is no name for users.
    if (const std::string own = name.substr(name.rfind('.') + 1); !std::isdigit(own.front())) {
      parameters_.back().lora_target = own;
      parameters_.back().adapted_linear = fmt::format("{}{}", kVisionPrefix, name);
    }
    add(name + ".bias", {num_out}, ParameterRole::kBias, unit);
  }
  /// The last parameter gets no adapter if users name `target`, which other layers are named too.
  void pass_over(std::string_view target) { parameters_.back().passed_over_target = target; }
  /// `normed`: the size of its norm.
  void merger(const std::string& module, const VisionSpec::MlpMerger& names, int64_t normed,
              int unit) {
    const int64_t merged = vision_.hidden_size * vision_.merged_patches();
    const auto name = [&](std::string_view part) { return fmt::format("{}.{}", module, part); };
    norm(name(names.norm), normed, unit);
    linear(name(names.first), merged, merged, unit);
    linear(name(names.second), vision_.output_size, merged, unit);
  }
  void merger(const std::string& module, const VisionSpec::MeanMerger& names, int64_t normed,
              int unit) {
    add(fmt::format("{}.{}.weight", module, names.norm), {normed}, ParameterRole::kNorm, unit);
    parameters_.back().init = first_values(NormKind::kOnePlusWeight);
    add(fmt::format("{}.{}", module, names.matrix), {normed, vision_.output_size},
        ParameterRole::kFeatures, unit);
  }
  std::vector<ParameterSpec> take() { return std::move(parameters_); }

 private:
  const VisionSpec& vision_;
  int first_unit_;
  std::vector<ParameterSpec> parameters_;
};

}  // namespace

std::vector<std::string_view> VisionSpec::Mlp::gated_names() {
  return {"gate_proj", "up_proj", "down_proj"};
}

VisionSpec::Names VisionSpec::names_of_qwen() {
  return {.patches = "patch_embed.proj",
          .positions = "pos_embed",
          .blocks = "blocks",
          .attention_norm = "norm1",
          .mlp_norm = "norm2",
          .qkv = {"attn.qkv"},
          .output = "attn.proj",
          .mlp = "mlp",
          .last_norm = {},
          .merger = "merger",
          .deepstack = "deepstack_merger_list"};
}

bool VisionSpec::is_full(int64_t block) const {
  return !windows || std::ranges::find(windows->full_blocks, block) != windows->full_blocks.end();
}

std::vector<ParameterSpec> parameters_of(const VisionSpec& vision, int first_unit) {
  VisionParameters list(vision, first_unit);
  const int64_t D = vision.hidden_size, I = vision.mlp.intermediate_size;
  const VisionSpec::Names& names = vision.names;
  std::vector<int64_t> patches{D, vision.num_channels, vision.patch_size, vision.patch_size};
  if (vision.temporal_patch_size > 0) {
    patches.insert(patches.begin() + 2, vision.temporal_patch_size);
  }
  list.add(fmt::format("{}.weight", names.patches), patches, ParameterRole::kPatches, 0);
  list.pass_over(names.patches.substr(names.patches.rfind('.') + 1));
  if (vision.has_patch_bias) {
    list.add(fmt::format("{}.bias", names.patches), {D}, ParameterRole::kBias, 0);
  }
  if (vision.position_side > 0) {
    list.add(fmt::format("{}.weight", names.positions),
             {vision.position_side * vision.position_side, D}, ParameterRole::kPositions, 0);
  }
  for (int64_t i = 0; i < vision.depth; ++i) {
    const int unit = vision.block_unit(i);
    const auto name = [&](std::string_view part) {
      return fmt::format("{}.{}.{}", names.blocks, i, part);
    };
    list.norm(name(names.attention_norm), D, unit);
    list.norm(name(names.mlp_norm), D, unit);
    for (const std::string_view part : names.qkv) {
      list.linear(name(part), 3 * D / std::ssize(names.qkv), D, unit);
    }
    list.linear(name(names.output), D, D, unit);
    const std::vector<std::string_view>& mlp = vision.mlp.names;
    for (size_t k = 0; k < mlp.size(); ++k) {
      const bool is_last = k + 1 == mlp.size();
      list.linear(name(fmt::format("{}.{}", names.mlp, mlp[k])), is_last ? D : I, is_last ? I : D,
                  unit);
    }
  }
  if (!names.last_norm.empty()) {
    list.norm(std::string(names.last_norm), D, vision.merger_unit(), ModelPart::kTower);
  }
  std::visit(
      [&](const auto& merger) {
        list.merger(std::string(names.merger), merger, D, vision.merger_unit());
        for (int64_t i = 0; i < std::ssize(vision.deepstack); ++i) {
          list.merger(fmt::format("{}.{}", names.deepstack, i), merger, D * vision.merged_patches(),
                      vision.deepstack_unit(i));
        }
      },
      vision.merger);
  return list.take();
}

double frame_flops(const VisionSpec& vision, int64_t num_patches) {
  const auto D = static_cast<double>(vision.hidden_size),
             I = static_cast<double>(vision.mlp.intermediate_size),
             P = static_cast<double>(num_patches);
  const double matrices = 4 * D * D + static_cast<double>(vision.mlp.names.size()) * D * I;
  double flops = 2 * P * static_cast<double>(vision.patch_dim()) * D;
  for (int64_t i = 0; i < vision.depth; ++i) {
    double seen = P;
    if (!vision.is_full(i)) {
      const auto side = static_cast<double>(vision.windows->side * vision.merge_size);
      seen = std::min(seen, side * side);
    }
    flops += 2 * P * matrices + 4 * P * seen * D;
  }
  const auto merged = static_cast<double>(vision.merged_patches()) * D;
  const double features = P / static_cast<double>(vision.merged_patches()),
               output = static_cast<double>(vision.output_size);
  if (std::holds_alternative<VisionSpec::MeanMerger>(vision.merger)) {
    return flops + 2 * features * D * output;
  }
  const double mergers = static_cast<double>(1 + vision.deepstack.size());
  return flops + mergers * 2 * features * (merged * merged + merged * output);
}

}  // namespace longspan
