// The keys of config.json that say how positions are rotated, as transformers 4 (rope_theta and
// rope_scaling) and 5 (rope_parameters) write them. No torch.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include "longspan/input/json_object.h"
#include "longspan/models/model_config.h"

namespace longspan {

/// Positions are counted in doubles and multiplied by factors.
inline constexpr int64_t kMostPositions = int64_t{1} << 40;

/// What a family has where its config.json says nothing of its rotation.
struct RotaryDefaults {
  double theta = 10000.0;
  RopeScaling scaling = {};
  RotaryPairs pairs = RotaryPairs::kHalves;
  /// partial_rotary_factor; none: the family's heads are always rotated whole.
  std::optional<double> partial_factor = std::nullopt;
  /// The scalings that the family knows, by their names in config.json.
  std::span<const std::pair<std::string_view, RopeScaling::Type>> types = kRopeTypes;
  /// original_max_position_embeddings of scaled models whose file has none but among the keys of
  /// the scaling, which transformers then does not read; none: it reads that.
  std::optional<int64_t> original_positions = std::nullopt;
};

/// Of heads of so many numbers. Sets config.rotary too. Where both versions' keys stand
/// rope_scaling wins, as in transformers' RotaryEmbeddingConfigMixin. Throws UserError: a type of
/// scaling that is not supported, numbers that do not fit each other.
RotarySpec read_rotary(const JsonObject& keys, int64_t head_dim, const RotaryDefaults& defaults,
                       ModelConfig& config);

/// Of families whose layers with a window have a rotation of their own, which is of whole heads.
struct RotaryByKind {
  RotarySpec full, windowed;
};
/// Where rope_parameters has an object for each kind of layer (full_attention, sliding_attention).
/// Transformers 4's rope_scaling is that of layers without a window. `windowed`: the rotation of
/// those with one where the file says nothing.
RotaryByKind read_rotary_by_kind(const JsonObject& keys, int64_t head_dim,
                                 const RotaryDefaults& defaults, const RotarySpec& windowed,
                                 ModelConfig& config);

}  // namespace longspan
