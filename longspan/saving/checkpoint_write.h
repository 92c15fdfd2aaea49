// The writing of one checkpoint, as work of each rank alone and agreements in between.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "longspan/comm/group.h"
#include "longspan/liveness/notices.h"
#include "longspan/memory/host_copies.h"
#include "longspan/optim/sharded_parameters.h"
#include "longspan/optim/state_shard.h"
#include "longspan/parameters/named_tensor.h"
#include "longspan/saving/saving.h"
#include "longspan/saving/training_state.h"
#include "longspan/settings/output_settings.h"

namespace longspan {

struct CheckpointContent {
  std::vector<NamedTensor> parameters;
  /// This rank's part of the optimizer's state. Ranks that hold the same shards divide the writing.
  std::vector<StateSource> states;
  /// Source of the parameters if no rank holds all of them: every rank then writes its part.
  ShardedParameters* sharded = nullptr;
  /// Written by rank 0; other ranks' values are ignored. nullopt: only the model is saved.
  std::optional<TrainingState> state;
  /// Further files by name, which rank 0 writes.
  std::map<std::string, std::string> texts;
};

struct CheckpointPlace {
  std::string output_dir;
  int64_t step = 0;
};

/// Writes <output_dir>/checkpoint-<step>: under a temporary name, synced, checksummed, renamed.
/// With save_total_limit, the checkpoint is then read back, and the oldest checkpoints beyond the
/// limit are removed.
///
/// All ranks run work(), agree that it has succeeded, and call go_on(), until go_on() returns
/// false. Destroying the object before that removes the temporary folder.
class CheckpointWrite {
 public:
  /// Makes the temporary folder. `copies`: copies all tensors, so that they may change before they
  /// are written. Null: writes the weight files of a sharded model; the other tensors must not
  /// change until they are written. Collective; throws as all_or_none.
  CheckpointWrite(const CheckpointPlace& place, const CheckpointContent& content,
                  const OutputSettings& config, const ModelSaver& saver, const Group& world,
                  Notices& notices, HostCopies* copies);
  ~CheckpointWrite();
  CheckpointWrite(const CheckpointWrite&) = delete;
  CheckpointWrite& operator=(const CheckpointWrite&) = delete;

  /// Returns this rank's next work. The work has no collective, and owns everything that it uses,
  /// so it may run on any thread and outlive this object. It throws UserError.
  std::function<void()> work() const;
  /// Returns true if there is more work. Collective.
  bool go_on();

  int64_t step() const { return step_; }
  /// The checkpoint's final name.
  const std::string& folder() const;
  /// True once the checkpoint is complete under its final name.
  bool is_placed() const { return phase_ > Phase::kPlace; }
  /// Bytes of a placed checkpoint's files, on rank 0.
  int64_t num_bytes() const;

 private:
  enum class Phase { kWrite, kPlace, kReadBack, kRemoveOld, kDone };
  struct Job;

  const Group& world_;
  const int64_t step_;
  const std::shared_ptr<Job> job_;  // of which the work has a share
  Phase phase_ = Phase::kWrite;
};

}  // namespace longspan
