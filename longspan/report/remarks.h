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
  int64_t ddp_timeout = 0;
  int64_t num_rows = 0;  // in the training set; 0: no training set
  int64_t rows_per_step = 0;
  int local_world_size = 1, num_cores = 1;  // on this machine
  bool cuda = false;
  std::map<LeftOut, int64_t> left_out = {};  // unread tensors of model and adapters
};

/// Returns a line for each kind of tensors of the files that are not read.
std::vector<std::string> remarks_on_left_out(const std::map<LeftOut, int64_t>& left_out);

/// Returns a warning about a ddp_timeout of more than a day, as in LLaMA-Factory's examples; else
/// "".
std::string warning_of_timeout(int64_t ddp_timeout);

/// Returns a line for each key that was interpreted in a special way, and for each likely mistake.
std::vector<std::string> remarks_at_start(const RemarkFacts& facts);

/// Returns a line for a run in a pod of Kubernetes whose end takes longer than the pod's default
/// period of grace; else "". A run that is told to end completes its step and saves a checkpoint.
std::string remark_on_grace(double seconds_of_checkpoint, double seconds_of_step);

}  // namespace longspan
