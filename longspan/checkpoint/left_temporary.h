// The names of files that are being written, by which a later run knows what an earlier one, which
// was killed, has left half-done. No torch.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "longspan/checkpoint/process_identity.h"

namespace longspan {

/// A name for a file that this process is about to write and then renames to `name`:
/// ".longspan-NAME.HOST.PROCESS.START.COUNT.partial", where HOST is the hash of the machine. No
/// other call, in any process, gives the same one.
std::string temporary_name(std::string_view name);

/// What such a name says.
struct TemporaryName {
  std::string name;
  std::string machine;  // hash
  int64_t process = 0, started = 0, count = 0;
};
/// nullopt for every name that temporary_name does not make.
std::optional<TemporaryName> temporary_from(const std::string& file_name);

/// What a name says that an older version gave to such a file: ".NAME.PROCESS-COUNT.tmp".
struct OldTemporaryName {
  std::string name;
  int64_t process = 0;
};
/// nullopt for every other name.
std::optional<OldTemporaryName> old_temporary_from(const std::string& file_name);

/// Removes the files directly in `folder` that have such a name and whose process has ended.
/// Nothing is known of other machines' processes: removes their files only where `folder_is_ours`,
/// that is, no other process writes there. There it also removes files of the older version, if a
/// list of a run's model or its log shows that runs write into the folder, NAME is a file of a run,
/// and no process has the number. Folders, links and all other names stay. Errors are ignored.
void remove_left_temporaries(const std::string& folder, bool folder_is_ours);

}  // namespace longspan
