// Keys of config.json for rotary positions, in the forms of transformers 4 (rope_theta and
// rope_scaling) and transformers 5 (rope_parameters). No torch.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include "longspan/input/json_object.h"
#include "longspan/models/model_config.h"

namespace longspan {

/// Limit of positions, which are computed as doubles and multiplied by factors.
inline constexpr int64_t kMostPositions = int64_t{1} << 40;

/// Defaults of a family for missing rotation keys.
struct RotaryDefaults {
  double theta = 10000.0;
  RopeScaling scaling = {};
  RotaryPairs pairs = RotaryPairs::kHalves;
  /// partial_rotary_factor; none: the family always rotates whole heads.
  std::optional<double> partial_factor = std::nullopt;
  /// The scalings that the family supports, by their names in config.json.
  std::span<const std::pair<std::string_view, RopeScaling::Type>> types = kRopeTypes;
  /// Default of original_max_position_embeddings for scaled models whose file has the key only
  /// inside the scaling, where transformers ignores the key. None: the key inside the scaling is
  /// used.
  std::optional<int64_t> original_positions = std::nullopt;
  /// Axes of positions of pictures (mrope_section); none: positions have one axis.
  std::optional<RotaryAxes> axes = std::nullopt;
};
/// kRopeTypes, and `mrope`: the name of unscaled frequencies in published files of Qwen2-VL.
extern const std::span<const std::pair<std::string_view, RopeScaling::Type>> kRopeTypesWithMrope;
/// Defaults of Qwen3-VL, dense and with experts.
extern const RotaryDefaults kQwen3VlRotary;

/// Reads the rotation of heads of size head_dim, and sets config.rotary. If the keys of both
/// versions are present, rope_scaling is used, as in transformers' RotaryEmbeddingConfigMixin.
/// Throws UserError for an unsupported scaling type and for numbers that contradict each other.
RotarySpec read_rotary(const JsonObject& keys, int64_t head_dim, const RotaryDefaults& defaults,
                       ModelConfig& config);

/// Rotations of a family whose layers with a window have their own rotation. The rotation of layers
/// with a window rotates whole heads.
struct RotaryByKind {
  RotarySpec full, windowed;
};
/// Reads both rotations. rope_parameters may have an object for each kind of layer (full_attention,
/// sliding_attention). transformers 4's rope_scaling applies to the layers without a window.
/// `windowed`: the default for layers with a window.
RotaryByKind read_rotary_by_kind(const JsonObject& keys, int64_t head_dim,
                                 const RotaryDefaults& defaults, const RotarySpec& windowed,
                                 ModelConfig& config);

}  // namespace longspan
