// The weight files of a model's folder. No torch.
#pragma once

#include <map>
#include <string>

namespace longspan {

/// Paths, resolved by model_file(). Either `single` or `shards` is empty.
struct WeightFiles {
  std::string single;                         // model.safetensors
  std::map<std::string, std::string> shards;  // by the tensor names of the index
};

/// Throws UserError if `folder` is not a folder, if weights are quantized, pickled or missing, or
/// if the index is broken or names a file outside the folder. Does not check that the files exist.
WeightFiles weight_files(const std::string& folder);

}  // namespace longspan
