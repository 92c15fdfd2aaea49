// Tries, before anything is computed, whether a run can write into its folders, and how much room
// they have.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "longspan/comm/group.h"
#include "longspan/comm/notices.h"
#include "longspan/config/output_settings.h"
#include "longspan/liveness/host.h"
#include "longspan/optim/update_rule.h"
#include "longspan/plan/disk_model.h"
#include "longspan/report/console.h"
#include "longspan/saving/saving.h"

namespace longspan {

/// Makes the folder where it is missing, writes a file into it, and removes what it has made.
/// Several machines may do so at once on a disk that they share. Throws UserError, which begins
/// with `key`.
void try_folder(const std::string& key, const std::string& folder);

/// The same for output_dir, TensorBoard's folder and fallback_folder. Throws UserError also where
/// fallback_output_dir is output_dir, and where fallback_folder is one of `sources`,
/// or holds results of an earlier run with this output_dir that may not be overwritten.
void try_output_dirs(const OutputSettings& config, const std::vector<SourceFolder>& sources);

/// Bytes that this process may still write where `folder` is or would be, by statvfs: quotas of a
/// user or a folder are not in it. nullopt: unknown.
std::optional<int64_t> free_bytes(const std::string& folder);
Room room_in(const std::string& folder);

/// What the run will write; the caller adds the number of saves. `rule`: whose states checkpoints
/// hold. `rounds`: the model is saved in fewer bits than it is trained in.
DiskFacts disk_facts(const OutputSettings& config, const UpdateRule& rule, const SavedModel& model,
                     bool rounds);

/// disk_account with what is free, and check_file_size; empty where the room is unknown. Throws
/// UserError.
std::string check_room(const OutputSettings& config, const DiskFacts& facts);

/// Is fallback_output_dir on the same disk as output_dir? A warning then, else empty.
std::string warning_of_fallback(const OutputSettings& config);

/// Saves what must not be lost: tries one folder after the other, and waits for room.
class PatientSaver {
 public:
  /// All outlive it.
  PatientSaver(const Group& world, Notices& notices, const Host& host, Console& console)
      : world_(world), notices_(notices), host_(host), console_(console) {}

  struct Saved {
    std::string name;       // "the model"
    int64_t num_bytes = 0;  // about so many
    std::string remains;    // what there is if this is given up: "the last checkpoint is ..."
  };
  /// Runs `attempt(folder)`, which is collective and throws as all_or_none, for the first of
  /// `folders`; where it fails, for the next. Where the disks are full it says so, waits until
  /// there is room and tries again, without end; a collective's timeout does not run meanwhile. A
  /// folder that fails for another reason is not tried again. Returns the folder that has it, or ""
  /// where the host of any rank asks the run to stop while it waits; where the run had been told to
  /// stop before, only an interrupt ends the waiting. When no folder is left, throws what attempt
  /// has thrown for the first. All ranks use rank 0's `folders`. Collective.
  std::string save(const Saved& what, const std::vector<std::string>& folders,
                   const std::function<void(const std::string&)>& attempt);

 private:
  /// False: interrupted.
  bool wait_for_room(const Saved& what, const std::vector<std::string>& folders, double pause,
                     bool told_before);

  const Group& world_;
  Notices& notices_;
  const Host& host_;
  Console& console_;
};

}  // namespace longspan
