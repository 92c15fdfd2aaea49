// Checks of a path that the user gives as a model. If the path is not a model, the messages name
// the kind of file or folder, and the way to get a model.
#pragma once

#include <string>

namespace longspan {

/// Throws UserError unless `path` is a Hugging Face model folder (with a config.json, and without
/// placeholder files), or a file that may be a config.json. The message names the kind of file: a
/// GGUF file, a single weight file, an archive, an adapter's folder, a hub cache, ...
void require_model_place(const std::string& path);

/// Throws UserError if a file of the folder is a Git LFS pointer, a web page under the file's name,
/// or a link out of the folder (input/model_files.h). Accepts a folder that cannot be read.
void require_real_files(const std::string& folder);

/// Throws UserError if config.json names a quantization that is not read for the model's family.
void require_plain_weights(const std::string& folder);

/// Returns the name of a pickled weight file in the folder, e.g. "pytorch_model.bin"; empty if
/// none.
std::string pickled_weights(const std::string& folder);

}  // namespace longspan
