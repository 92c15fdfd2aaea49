// Reads the pixels of pictures from the files that samples name.
#pragma once

#include "longspan/models/picture_features.h"

namespace longspan {

struct Config;

/// Returns the reader of a run's pictures: `given` if not empty, otherwise a reader with the size
/// limits of the configuration and the processor of model_name_or_path. The reader loads the
/// processor at the first picture. The reader throws UserError with the file's path if a file is
/// missing, is broken, or has changed since the row was made.
FramePatches frame_patches_of(const Config& config, const FramePatches& given);

}  // namespace longspan
