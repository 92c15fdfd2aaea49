// Pixels of the pictures that samples name by their files.
#pragma once

#include "longspan/models/picture_features.h"

namespace longspan {

struct Config;

/// Returns how the pictures of a run are read: by `given` if it is not empty; else by the limits of
/// the configuration, then by the processor of model_name_or_path, which is read at the first
/// picture. The function throws UserError with the file's path: it is missing, broken, or another
/// than when the row was made.
FramePatches frame_patches_of(const Config& config, const FramePatches& given);

}  // namespace longspan
