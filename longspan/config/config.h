// The user's configuration with all defaults, under LLaMA-Factory's names. No torch.
#pragma once

#include <string>
#include <vector>

#include "longspan/config/data_settings.h"
#include "longspan/config/export_settings.h"
#include "longspan/config/memory_settings.h"
#include "longspan/config/method_settings.h"
#include "longspan/config/model_settings.h"
#include "longspan/config/optimization_settings.h"
#include "longspan/config/output_settings.h"
#include "longspan/config/parallel_settings.h"
#include "longspan/config/preference_settings.h"

namespace longspan {

/// All keys, by section. A function takes the sections that it reads.
struct Config {
  ModelSettings model;
  MethodSettings method;
  PreferenceSettings preferences;
  DataSettings data;
  OutputSettings output;
  OptimizationSettings optimization;
  MemorySettings memory;
  ExportSettings exporting;
  ParallelSettings parallel;
  /// Messages to the user about accepted keys.
  std::vector<std::string> notes;
};

/// Reads a YAML or JSON file and then the overrides `key=value` or `--key value`. Throws UserError:
/// missing file, broken YAML (with file and line), unknown key (with the nearest known one),
/// unsupported key, value of the wrong type or out of range.
Config load_config(const std::string& path, const std::vector<std::string>& overrides);

/// The same for `longspan export`, which reads fewer keys and accepts training keys in the file.
Config load_export_config(const std::string& path, const std::vector<std::string>& overrides);

}  // namespace longspan
