// Checks before any computation that a run can write into its folders, and how much space the
// folders have.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "longspan/account/disk_model.h"
#include "longspan/comm/group.h"
#include "longspan/liveness/notices.h"
#include "longspan/liveness/run_control.h"
#include "longspan/registers/update_rule.h"
#include "longspan/report/console.h"
#include "longspan/report/events.h"
#include "longspan/saving/saving.h"
#include "longspan/settings/output_settings.h"

namespace longspan {

/// Creates the folder if it is missing, writes a file into it, and removes everything that it
/// created. Several machines may call this function at the same time on a shared disk. Throws
/// UserError; its message begins with `key`.
void try_folder(const std::string& key, const std::string& folder);

/// As try_folder(), for output_dir, TensorBoard's folder and fallback_folder. Also throws UserError
/// if fallback_output_dir is output_dir, and if fallback_folder is one of `sources` or holds
/// results of an earlier run with this output_dir that may not be overwritten.
void try_output_dirs(const OutputSettings& config, const std::vector<SourceFolder>& sources);

/// Returns the bytes that this process may still write at `folder` (which may not exist yet), by
/// statvfs. Quotas of a user or a folder are not considered. nullopt: unknown.
std::optional<int64_t> free_bytes(const std::string& folder);
Room room_in(const std::string& folder);

/// Returns the bytes that the run will write; the caller sets the number of saves. `rule`: the
/// optimizer whose states checkpoints hold. `rounds`: the model is saved in lower precision than in
/// training.
DiskFacts disk_facts(const OutputSettings& config, const UpdateRule& rule, const SavedModel& model,
                     bool rounds);

/// Calls disk_account with the free space, and check_file_size. Returns an empty string if the
/// space is unknown. Throws UserError.
std::string check_room(const OutputSettings& config, const DiskFacts& facts);

/// Returns a warning if fallback_output_dir is on the same disk as output_dir; otherwise empty.
std::string warning_of_fallback(const OutputSettings& config);

/// Saves results that must not be lost: tries several folders, and waits for disk space.
class PatientSaver {
 public:
  /// All arguments must outlive this object.
  PatientSaver(const Group& world, Notices& notices, const RunControl& control, Events& events)
      : world_(world), notices_(notices), control_(control), events_(events) {}

  struct Saved {
    std::string name;       // e.g. "the model"
    int64_t num_bytes = 0;  // approximate size
    std::string remains;    // text for a save that is given up: "the last checkpoint is ..."
  };
  /// Calls `attempt(folder)`, which must be collective and throw as all_or_none, for one of
  /// `folders` after the other until an attempt succeeds. If the disks are full, prints a message,
  /// waits for space without a time limit and tries again; the timeout of collectives does not run
  /// during the wait. Does not retry a folder that failed for another reason. Returns the folder,
  /// or "" if the control of any rank asks the run to stop during the wait; if the run was told to
  /// stop before the wait, only an interrupt ends the wait. If no folder is left, rethrows the
  /// first folder's error. All ranks use rank 0's `folders`. Collective.
  std::string save(const Saved& what, const std::vector<std::string>& folders,
                   const std::function<void(const std::string&)>& attempt);

 private:
  /// Returns false if interrupted.
  bool wait_for_room(const Saved& what, const std::vector<std::string>& folders, double pause,
                     bool told_before);

  const Group& world_;
  Notices& notices_;
  const RunControl& control_;
  Events& events_;
};

}  // namespace longspan
