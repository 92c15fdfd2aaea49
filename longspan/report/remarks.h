// Remarks of a run before its first step. No torch.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "longspan/models/model_config.h"
#include "longspan/settings/method_settings.h"
#include "longspan/spec/file_tensors.h"

namespace longspan {

struct RemarkFacts {
  const std::vector<std::string>& notes;  // from the configuration, on its keys
  const MethodSettings& method;
  const std::string& adapters;  // adapter_name_or_path
  const ModelConfig& model;
  std::string plan_warning;  // may be empty
  int64_t num_rows = 0;      // in the training set; 0: no training set
  int64_t rows_per_step = 0;
  int local_world_size = 1, num_cores = 1;  // on this machine
  bool cuda = false;
  std::map<LeftOut, int64_t> left_out = {};  // unread tensors of model and adapters
};

/// Returns a line for each key that was interpreted in a special way, and for each likely mistake.
std::vector<std::string> remarks_at_start(const RemarkFacts& facts);

}  // namespace longspan
