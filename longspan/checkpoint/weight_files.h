// Which files hold the weights of a model's folder. No torch.
#pragma once

#include <map>
#include <string>

namespace longspan {

/// Paths, as model_file gives them. One of the two is empty.
struct WeightFiles {
  std::string single;                         // model.safetensors
  std::map<std::string, std::string> shards;  // by the tensors that the index names
};

/// Throws UserError: the folder is none, its weights are quantized, pickled or missing, the index
/// is broken or names a file outside of the folder. The files need not be there.
WeightFiles weight_files(const std::string& folder);

}  // namespace longspan
