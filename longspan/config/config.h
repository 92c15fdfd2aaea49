// The user's configuration with all defaults, under LLaMA-Factory's names. No torch.
#pragma once

#include <string>
#include <vector>

#include "longspan/settings/data_settings.h"
#include "longspan/settings/export_settings.h"
#include "longspan/settings/memory_settings.h"
#include "longspan/settings/method_settings.h"
#include "longspan/settings/model_settings.h"
#include "longspan/settings/optimization_settings.h"
#include "longspan/settings/output_settings.h"
#include "longspan/settings/parallel_settings.h"
#include "longspan/settings/preference_settings.h"

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

/// The source of a run's training rows: `dataset`, or the program that starts the run
/// (RunParts::make_source), whose configuration may leave `dataset` out.
enum class TrainingRows { kOfDataSet, kOfCaller };

/// Reads a YAML or JSON file and then the overrides `key=value` or `--key value`. Throws UserError:
/// missing file, broken YAML (with file and line), unknown key (with the nearest known key),
/// unsupported key, value of the wrong type or out of range.
Config load_config(const std::string& path, const std::vector<std::string>& overrides,
                   TrainingRows rows = TrainingRows::kOfDataSet);

/// The same for a Session, which needs no data set, output folder or do_train. An empty path: the
/// overrides alone.
Config load_session_config(const std::string& path, const std::vector<std::string>& overrides);

/// The same for `longspan export`, which reads fewer keys and accepts training keys in the file.
Config load_export_config(const std::string& path, const std::vector<std::string>& overrides);

}  // namespace longspan
