// checkpoint-N/ folders. All ranks write a checkpoint; later runs find checkpoints, and remove old
// ones. A folder with its final name is complete. Checksums detect later changes, for example by a
// broken disk.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "longspan/comm/group.h"
#include "longspan/liveness/notices.h"
#include "longspan/memory/host_copies.h"
#include "longspan/saving/checkpoint_write.h"
#include "longspan/saving/saving.h"
#include "longspan/settings/output_settings.h"

namespace longspan {

struct FoundCheckpoint {
  std::string folder;
  int64_t step = 0;
  double saved_at = 0.0;
  bool has_state = false;   // a run can resume from it if it is intact
  std::string launch, job;  // empty if the state cannot be read
};

/// Returns the checkpoint folders in output_dir, by saving time, newest first.
std::vector<FoundCheckpoint> find_checkpoints(const std::string& output_dir);
/// Returns the checkpoints in all of the run's own folders (output_folders).
std::vector<FoundCheckpoint> find_checkpoints(const OutputSettings& config);

/// Returns a free hidden path in output_dir, to which checkpoint `name` is moved while a new
/// checkpoint replaces it. Removes an earlier folder at that path. If a network disk keeps that
/// folder because a file in it is open, returns another path. Throws UserError as
/// remove_own_folder.
std::string name_for_replaced(const std::string& output_dir, const std::string& name);

/// Restores the name of a checkpoint that a killed run had moved away and not yet replaced. Must be
/// called before anything looks for checkpoints.
void put_back_replaced(const std::string& output_dir);

/// Removes the incomplete files and folders of a killed run in output_dir, by the program's
/// temporary names. The caller must keep other runs out. Throws UserError, without removing
/// anything, if a folder of such a name holds anything else.
void remove_leftovers(const std::string& output_dir);

/// Returns a short description of the checkpoint's damage; empty if it is intact. Each rank of
/// `world` reads a part; the result is the same on all ranks. Collective. Throws UserError if a
/// rank does not see the checkpoint.
std::string broken_part(const Group& world, Notices& notices, const std::string& folder);

/// Returns "checkpoint-<step>".
std::string checkpoint_name(int64_t step);

/// Removes the oldest checkpoints in output_dir beyond the limit, except `newest` (a name). 0: no
/// limit.
void remove_old_checkpoints(const std::string& output_dir, const std::string& newest,
                            int64_t limit);

struct SavedCheckpoint {
  std::string folder;
  int64_t num_bytes = 0;  // CheckpointWrite::num_bytes()
};

class Checkpoints {
 public:
  /// All arguments must outlive this object. `last`: the checkpoint that the run resumes from, or
  /// empty.
  Checkpoints(const OutputSettings& config, const Group& world, Notices& notices,
              const ModelSaver& saver, std::string last)
      : config_(config), world_(world), notices_(notices), saver_(saver), last_(std::move(last)) {}

  /// Saves <output_dir>/checkpoint-<step>, as CheckpointWrite describes, with `output_dir` the
  /// configuration's or its fallback_folder. Collective; throws as all_or_none.
  SavedCheckpoint save(const std::string& output_dir, int64_t step,
                       const CheckpointContent& content);
  /// Returns the writing of the same checkpoint from copies, before its first work. Collective;
  /// throws as all_or_none.
  std::unique_ptr<CheckpointWrite> begin(const std::string& output_dir, int64_t step,
                                         const CheckpointContent& content,
                                         HostCopies& copies) const;
  /// Called once the checkpoint of begin() is complete.
  void has_saved(const std::string& folder) { last_ = folder; }

  /// Returns the checkpoint that the run saved last, or resumed from; empty if there is no
  /// checkpoint.
  const std::string& last() const { return last_; }
  /// Returns "the last checkpoint is FOLDER" or "no checkpoint has been saved".
  std::string last_text() const {
    return last_.empty() ? "no checkpoint has been saved" : "the last checkpoint is " + last_;
  }

 private:
  const OutputSettings& config_;
  const Group& world_;
  Notices& notices_;
  const ModelSaver& saver_;
  std::string last_;
};

}  // namespace longspan
