// Reads the keys of vision_config in config.json into the spec of a vision tower. No torch.
#pragma once

#include "longspan/input/json_object.h"
#include "longspan/models/family.h"
#include "longspan/spec/vision_spec.h"

namespace longspan {

/// Tokens that stand for pictures, if config.json names none.
inline constexpr PictureTokens kQwenPictureTokens{151655, 151656, 151652, 151653},
    kQwen3_5PictureTokens{248056, 248057, 248053, 248054},
    kGemma3PictureTokens{262144, -1, 255999, 256000};

/// Reads the tower of a family. Throws UserError for missing and invalid values, and for unknown
/// keys.
VisionSpec read_qwen2_vl_vision(const VisionKeys& keys);
VisionSpec read_qwen2_5_vl_vision(const VisionKeys& keys);
/// Qwen3-VL; Qwen3.5 without deepstack.
VisionSpec read_qwen3_vl_vision(const VisionKeys& keys);
VisionSpec read_qwen3_5_vision(const VisionKeys& keys);
/// SigLIP with Gemma 3's projector.
VisionSpec read_gemma3_vision(const VisionKeys& keys);

}  // namespace longspan
