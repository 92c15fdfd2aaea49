// What was given as a model, when it is none: named by what it is, with the way to a model.
#pragma once

#include <string>

namespace longspan {

/// Throws UserError unless `path` is a Hugging Face model folder by its files (config.json, and no
/// file that only stands for another), or a file that may be a config.json. Names what it is
/// instead: a GGUF file, one weight file, an archive, an adapter's folder, a cache of the hub, ...
void require_model_place(const std::string& path);

/// Throws UserError when a file of the folder is a Git LFS pointer or a web page under the file's
/// name, or a link that leaves the folder (input/model_files.h). A folder that cannot be read has
/// none.
void require_real_files(const std::string& folder);

/// Throws UserError when the folder's config.json says that the weights are quantized, in a way
/// that its family does not read.
void require_plain_weights(const std::string& folder);

/// "pytorch_model.bin": a file with pickled weights of the folder, or nothing.
std::string pickled_weights(const std::string& folder);

}  // namespace longspan
