// The division of a model's videos into patches. No torch.
#pragma once

#include <cstdint>
#include <string>

#include "longspan/pictures/picture_processor.h"
#include "longspan/spec/picture_grid.h"

namespace longspan {

/// Sizes of transformers' video processors: Qwen2-VL's limits apply to a frame, Qwen3-VL's limits
/// to all frames together.
struct VideoProcessor {
  int64_t patch_size = 14, temporal_patch_size = 2, merge_size = 2;
  int64_t min_pixels = 0, max_pixels = 0;
  bool limits_all_frames = false;
};

/// Reads video_preprocessor_config.json, or preprocessor_config.json if there is no such file.
/// Throws UserError.
VideoProcessor load_video_processor(const std::string& folder, bool limits_all_frames);

/// Returns the patches of frames of `size`. `num_frames` must be at least temporal_patch_size. An
/// incomplete last temporal patch counts. Throws UserError if the sides differ by more than a
/// factor of 200.
PictureGrid video_grid_of(int64_t num_frames, PictureSize size, const VideoProcessor& processor);

}  // namespace longspan
