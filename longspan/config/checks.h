// Checks of keys against each other. No torch.
#pragma once

#include <string>
#include <vector>

namespace longspan {

struct Config;
enum class TrainingRows;

/// Returns the problems of a configuration whose values have the right types and ranges: missing
/// keys, keys that exclude each other. Each problem is one line, with the remedy. Empty where there
/// is no problem.
std::vector<std::string> check_config(const Config& config, TrainingRows rows);

/// The same for a Session, without the keys that only a run needs.
std::vector<std::string> check_session_config(const Config& config);

/// The same for `longspan export`.
std::vector<std::string> check_export_config(const Config& config);

}  // namespace longspan
