// The folders that are a run's own.
#pragma once

#include <string>
#include <vector>

#include "longspan/config/output_settings.h"

namespace longspan {

/// The folder in output_dir in which the final model is written, before its files are moved.
constexpr const char* kUnfinishedModel = ".model.partial";

/// The first 8 hex digits of a hash of the absolute path without links: by it, runs that share a
/// folder know their own files.
std::string hash_of_path(const std::string& folder);

/// This run's folder in fallback_output_dir, which other runs may use too:
/// fallback_output_dir/NAME-HASH, by the name and the hash of output_dir. Empty without that key.
std::string fallback_folder(const OutputSettings& config);

/// output_dir and, with fallback_output_dir, the folder in that.
std::vector<std::string> output_folders(const OutputSettings& config);

}  // namespace longspan
