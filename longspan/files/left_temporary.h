// Names of temporary files. By these names a later run finds the half-written files of a killed
// run. No torch.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "longspan/files/process_identity.h"

namespace longspan {

/// Returns a unique name for a file that is written and then renamed to `name`:
/// ".longspan-NAME.HOST.PROCESS.START.COUNT.partial". HOST is a hash of the machine. No other call
/// returns the same name, in any process.
std::string temporary_name(std::string_view name);

/// The parts of a temporary name.
struct TemporaryName {
  std::string name;
  std::string machine;  // hash
  int64_t process = 0, started = 0, count = 0;
};
/// Parses a name of temporary_name(); nullopt for any other name.
std::optional<TemporaryName> temporary_from(const std::string& file_name);

/// The parts of a temporary name of an older version: ".NAME.PROCESS-COUNT.tmp".
struct OldTemporaryName {
  std::string name;
  int64_t process = 0;
};
/// Parses a temporary name of the older version; nullopt for any other name.
std::optional<OldTemporaryName> old_temporary_from(const std::string& file_name);

/// Removes temporary files directly in `folder` whose process has ended. `folder_is_ours`: no other
/// process writes into the folder. If true, the function also removes
///   - files of other machines' processes, about which nothing is known;
///   - files of the older version, if a list of model files or a log shows that runs write into the
///     folder, NAME is a file of a run, and no process has the number in the name.
/// Leaves folders, links and all other names. Ignores errors.
void remove_left_temporaries(const std::string& folder, bool folder_is_ours);

}  // namespace longspan
