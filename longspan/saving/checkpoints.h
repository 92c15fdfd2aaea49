// checkpoint-N/ folders. All ranks write a checkpoint; later runs find checkpoints, and remove old
// ones. A folder with its final name is complete. Checksums detect later changes, for example by a
// broken disk.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "longspan/comm/group.h"
#include "longspan/liveness/notices.h"
#include "longspan/optim/sharded_parameters.h"
#include "longspan/optim/state_shard.h"
#include "longspan/parameters/named_tensor.h"
#include "longspan/saving/saving.h"
#include "longspan/saving/training_state.h"
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

struct CheckpointContent {
  const std::vector<NamedTensor>& parameters;
  /// This rank's part of the optimizer's state. Ranks that hold the same shards divide the writing.
  std::vector<StateSource> states;
  /// Source of the parameters if no rank holds all of them: every rank then writes its part.
  ShardedParameters* sharded = nullptr;
  /// Written by rank 0; other ranks' values are ignored. nullopt: only the model is saved.
  std::optional<TrainingState> state;
  /// Writes further files into the folder, on rank 0.
  std::function<void(const std::string& folder)> add_files;
};

class Checkpoints {
 public:
  /// All arguments must outlive this object. `last`: the checkpoint that the run resumes from, or
  /// empty.
  Checkpoints(const OutputSettings& config, const Group& world, Notices& notices,
              const ModelSaver& saver, std::string last)
      : config_(config), world_(world), notices_(notices), saver_(saver), last_(std::move(last)) {}

  /// Saves <output_dir>/checkpoint-<step> and returns the folder. The checkpoint is written under a
  /// temporary name, synced, checksummed and renamed. With save_total_limit the checkpoint is then
  /// read back, and the oldest checkpoints beyond the limit are removed. `output_dir`: the
  /// configuration's, or its fallback_folder. Collective; throws as all_or_none.
  std::string save(const std::string& output_dir, int64_t step, const CheckpointContent& content);

  /// Returns the checkpoint that the run saved last, or resumed from; empty if there is no
  /// checkpoint.
  const std::string& last() const { return last_; }
  /// Returns "the last checkpoint is FOLDER" or "no checkpoint has been saved".
  std::string last_text() const {
    return last_.empty() ? "no checkpoint has been saved" : "the last checkpoint is " + last_;
  }

 private:
  /// Writes this rank's part of the state. Returns the part's name in the folder; empty if this
  /// rank has no part. Collective.
  std::string write_part(const std::string& folder, const std::vector<StateSource>& states) const;
  void remove_old(const std::string& output_dir, const std::string& newest) const;

  const OutputSettings& config_;
  const Group& world_;
  Notices& notices_;
  const ModelSaver& saver_;
  std::string last_;
};

}  // namespace longspan
