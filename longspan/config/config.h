// What the user wrote, with every default visible: LLaMA-Factory's keys by their own names. No
// torch.
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

/// All keys. What needs one room of it takes that room alone.
struct Config : ModelSettings,
                MethodSettings,
                PreferenceSettings,
                DataSettings,
                OutputSettings,
                OptimizationSettings,
                MemorySettings,
                ExportSettings,
                ParallelSettings {
  /// What to tell the user about keys that were taken.
  std::vector<std::string> notes;
};

/// Reads a YAML (or JSON) file and then `key=value` / `--key value` overrides. Throws UserError:
/// missing file, broken YAML (file, line), an unknown key (names the nearest known one), a known
/// key that is not supported (by name), a value of the wrong type or out of range.
Config load_config(const std::string& path, const std::vector<std::string>& overrides);

/// The same for `longspan export`, which looks at fewer keys and takes those of training that its
/// users' files also hold.
Config load_export_config(const std::string& path, const std::vector<std::string>& overrides);

}  // namespace longspan
