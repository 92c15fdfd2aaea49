// checkpoint-N/ folders: all ranks write them; later runs find them, and remove old ones. A folder
// under its final name is whole, unless the disk or somebody has changed it, which its checksums
// show.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "longspan/comm/group.h"
#include "longspan/comm/notices.h"
#include "longspan/config/output_settings.h"
#include "longspan/optim/sharded_parameters.h"
#include "longspan/optim/state_piece.h"
#include "longspan/parameters/named_tensor.h"
#include "longspan/saving/saving.h"
#include "longspan/saving/training_state.h"

namespace longspan {

struct FoundCheckpoint {
  std::string folder;
  int64_t step = 0;
  double saved_at = 0.0;
  bool has_state = false;   // a run can resume from it, if it is whole
  std::string launch, job;  // empty where the state cannot be read
};

/// Folders of this name in output_dir, the newest, by the time of saving, first.
std::vector<FoundCheckpoint> find_checkpoints(const std::string& output_dir);
/// The checkpoints of both folders that are the run's own (output_folders).
std::vector<FoundCheckpoint> find_checkpoints(const OutputSettings& config);

/// A path under which checkpoint `name` can wait in output_dir for its removal while a new one
/// takes its place: hidden, and free. An earlier one there is removed; where a disk of the network
/// keeps its folder, because somebody still holds a file in it open, the path is another one.
/// Throws UserError as remove_own_folder.
std::string name_for_replaced(const std::string& output_dir, const std::string& name);

/// Gives its name back to a checkpoint that a killed run was about to replace and had not replaced
/// yet. Call it before anybody looks for checkpoints.
void put_back_replaced(const std::string& output_dir);

/// Removes what a run that was killed has left half-done in output_dir: files and folders with the
/// program's own temporary names, of which all is the program's. The caller keeps other runs out.
/// Throws UserError, having removed nothing, where something else has the name of a folder that a
/// run writes there.
void remove_leftovers(const std::string& output_dir);

/// Says what is wrong with the checkpoint, in a few words; empty: nothing. Each rank of `world`
/// reads a part, and all get the same answer. Collective. Throws UserError when a rank does not see
/// it.
std::string broken_part(const Group& world, Notices& notices, const std::string& folder);

struct CheckpointContent {
  const std::vector<NamedTensor>& parameters;
  /// The part of the optimizer's state that this rank holds. Ranks that hold the same pieces share
  /// out the writing.
  std::vector<StateSource> states;
  /// Where the parameters come from if no rank holds all of them: every rank writes its part.
  ShardedParameters* sharded = nullptr;
  /// Absent: the model alone. Rank 0's is written.
  std::optional<TrainingState> state;
  /// Writes what else belongs into the folder, on rank 0.
  std::function<void(const std::string& folder)> add_files;
};

class Checkpoints {
 public:
  /// All outlive it. `last`: the checkpoint that the run resumes from, or empty.
  Checkpoints(const OutputSettings& config, const Group& world, Notices& notices,
              const ModelSaver& saver, std::string last)
      : config_(config), world_(world), notices_(notices), saver_(saver), last_(std::move(last)) {}

  /// <output_dir>/checkpoint-<step>: written under a temporary name, synced, checksummed, renamed,
  /// read back; then the oldest ones beyond save_total_limit go. `output_dir`: the configuration's,
  /// or its fallback_folder. Returns the folder. Collective; throws as all_or_none.
  std::string save(const std::string& output_dir, int64_t step, const CheckpointContent& content);

  /// The checkpoint that the run saved last, or resumed from. Empty when there is none.
  const std::string& last() const { return last_; }
  /// "the last checkpoint is FOLDER", "no checkpoint has been saved".
  std::string last_text() const {
    return last_.empty() ? "no checkpoint has been saved" : "the last checkpoint is " + last_;
  }

 private:
  /// Writes this rank's part of the state. Its name in the folder; empty where it has none.
  /// Collective.
  std::string write_part(const std::string& folder, const std::vector<StateSource>& states) const;
  void remove_old(const std::string& output_dir, const std::string& newest) const;

  const OutputSettings& config_;
  const Group& world_;
  Notices& notices_;
  const ModelSaver& saver_;
  std::string last_;
};

}  // namespace longspan
