// The folders that belong to a run.
#pragma once

#include <string>
#include <vector>

#include "longspan/settings/output_settings.h"

namespace longspan {

/// Folder in output_dir in which the final model is written before its files are moved.
constexpr const char* kUnfinishedModel = ".model.partial";

/// File of the generated answers (do_predict), as in LLaMA-Factory.
constexpr const char* kAnswersFile = "generated_predictions.jsonl";

/// Returns the first 8 hex digits of a hash of the absolute path without links. Runs that share a
/// folder recognize their own files by this hash.
std::string hash_of_path(const std::string& folder);

/// Returns this run's folder in fallback_output_dir, which other runs may use too:
/// fallback_output_dir/NAME-HASH, with the name and the hash of output_dir. Empty if the key is not
/// set.
std::string fallback_folder(const OutputSettings& config);

/// Returns output_dir and, with fallback_output_dir, the run's folder in it.
std::vector<std::string> output_folders(const OutputSettings& config);

}  // namespace longspan
