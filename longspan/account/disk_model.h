// Bytes that a run will write into output_dir, by formula. No torch.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "longspan/settings/choices.h"

namespace longspan {

/// Inputs of the disk estimate.
struct DiskFacts {
  int64_t saved_elements = 0;  // elements of the saved model: all parameters, or the adapter's
  int64_t saved_bytes = 4;     // bytes per saved element
  int64_t other_bytes = 0;     // tokenizer files and the like, per save
  int64_t num_trained = 0;     // elements with optimizer state
  double state_bytes = 8;      // mean bytes of optimizer state on disk per trained element
  bool only_model = false;     // save_only_model
  bool rounded = false;        // bf16 weights are saved with fp32 masters
  int64_t num_processes = 1;   // processes that write optimizer states, one file each
  bool sharded = false;        // these processes also write the model in parts
  int64_t num_saves = 0;       // checkpoints still to be written
  int64_t num_found = 0;       // checkpoints already in output_dir
  int64_t limit = 0;           // save_total_limit; 0: no limit
};

/// Estimated bytes on disk. Sharding the states (zero_stage) does not change the bytes: each shard
/// is written once.
struct DiskNeed {
  int64_t model = 0;         // the final model
  int64_t checkpoint = 0;    // one checkpoint
  int64_t num_retained = 0;  // checkpoints that exist at the end
  /// Peak of the bytes that the run adds to output_dir. An old checkpoint is removed only after the
  /// new one has been read back, and the final model is saved while all retained checkpoints exist.
  int64_t most = 0;
};
DiskNeed disk_need(const DiskFacts& facts);

/// Returns the number of checkpoints between step `from` (0: the start) and the end, by
/// save_strategy.
int64_t num_saves(Interval strategy, int64_t save_steps, int64_t from, int64_t total_steps,
                  int64_t steps_per_epoch);

/// A folder and its free bytes. nullopt: unknown, treated as enough.
struct Room {
  std::string folder;
  std::optional<int64_t> free;

  bool may_take(int64_t bytes) const { return !free || *free >= bytes; }
};

/// Returns one line with the bytes that the run will write and the free bytes. If the free bytes
/// are too few, the line has a warning with the remedy. Empty if the free space of output_dir is
/// unknown. Throws UserError if the model alone fits neither into output_dir nor into `fallback`.
/// `fallback`: the run's folder in fallback_output_dir; nullopt: the run has no such folder.
std::string disk_account(const DiskFacts& facts, const Room& output_dir,
                         const std::optional<Room>& fallback);

/// Throws UserError if the model or a checkpoint cannot be saved because of the limit on a
/// process's file size, `limit` bytes (ulimit -f; nullopt: no limit). A weight file has at most
/// `shard_bytes`. If the weights exceed `shard_bytes`, the estimate takes `shard_bytes` / 2 as the
/// size of the largest file.
void check_file_size(const DiskFacts& facts, std::optional<int64_t> limit, int64_t shard_bytes);

}  // namespace longspan
