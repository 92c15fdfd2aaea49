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
  void norm(const std::string& name, int64_t size, int unit) {
    add(name + ".weight", {size}, ParameterRole::kNorm, unit);
    if (vision_.norm == VisionSpec::Norm::kLayerNorm) {
      add(name + ".bias", {size}, ParameterRole::kBias, unit);
    }
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
  void pass_over(const char* target) { parameters_.back().passed_over_target = target; }
  /// `normed`: the size of its norm.
  void merger(const std::string& module, const VisionSpec::MergerNames& names, int64_t normed,
              int unit) {
    const int64_t merged = vision_.hidden_size * vision_.merged_patches();
    const auto name = [&](std::string_view part) { return fmt::format("{}.{}", module, part); };
    norm(name(names.norm), normed, unit);
    linear(name(names.first), merged, merged, unit);
    linear(name(names.second), vision_.output_size, merged, unit);
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

bool VisionSpec::is_full(int64_t block) const {
  return !windows || std::ranges::find(windows->full_blocks, block) != windows->full_blocks.end();
}

std::vector<ParameterSpec> parameters_of(const VisionSpec& vision, int first_unit) {
  VisionParameters list(vision, first_unit);
  const int64_t D = vision.hidden_size, I = vision.mlp.intermediate_size;
  list.add(
      "patch_embed.proj.weight",
      {D, vision.num_channels, vision.temporal_patch_size, vision.patch_size, vision.patch_size},
      ParameterRole::kPatches, 0);
  list.pass_over("proj");
  if (vision.has_patch_bias) list.add("patch_embed.proj.bias", {D}, ParameterRole::kBias, 0);
  if (vision.position_side > 0) {
    list.add("pos_embed.weight", {vision.position_side * vision.position_side, D},
             ParameterRole::kPositions, 0);
  }
  for (int64_t i = 0; i < vision.depth; ++i) {
    const int unit = vision.block_unit(i);
    const auto name = [&](std::string_view part) { return fmt::format("blocks.{}.{}", i, part); };
    list.norm(name("norm1"), D, unit);
    list.norm(name("norm2"), D, unit);
    list.linear(name("attn.qkv"), 3 * D, D, unit);
    list.linear(name("attn.proj"), D, D, unit);
    const std::vector<std::string_view>& mlp = vision.mlp.names;
    for (size_t k = 0; k < mlp.size(); ++k) {
      const bool is_last = k + 1 == mlp.size();
      list.linear(name(fmt::format("mlp.{}", mlp[k])), is_last ? D : I, is_last ? I : D, unit);
    }
  }
  list.merger("merger", vision.merger, D, vision.merger_unit());
  for (int64_t i = 0; i < std::ssize(vision.deepstack); ++i) {
    list.merger(fmt::format("deepstack_merger_list.{}", i), vision.merger,
                D * vision.merged_patches(), vision.deepstack_unit(i));
  }
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
  const double mergers = static_cast<double>(1 + vision.deepstack.size());
  return flops + mergers * 2 * P / static_cast<double>(vision.merged_patches()) *
                     (merged * merged + merged * static_cast<double>(vision.output_size));
}

}  // namespace longspan
