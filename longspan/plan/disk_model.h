// What a run will write into output_dir, by formula. No torch.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "longspan/config/choices.h"

namespace longspan {

/// The numbers that the account of the disk is made from.
struct DiskFacts {
  int64_t saved_elements = 0;  // of the model that is saved: all parameters, or the adapter's
  int64_t saved_bytes = 4;     // of one of them on disk
  int64_t other_bytes = 0;     // tokenizer files and the like, of each save
  int64_t num_trained = 0;     // numbers that have an optimizer's state
  double state_bytes = 8;      // of each of them in a file, on the mean
  bool only_model = false;     // save_only_model
  bool rounded = false;        // masters are saved beside the weights: those are bf16
  int64_t num_processes = 1;   // that write an optimizer's states, each a file
  bool divided = false;        // they write the model so too
  int64_t num_saves = 0;       // checkpoints that are still to come
  int64_t num_found = 0;       // that lie in output_dir already
  int64_t limit = 0;           // save_total_limit; 0: none
};

/// Bytes. Dividing the states (zero_stage) changes none of them: what several processes hold is
/// written once.
struct DiskNeed {
  int64_t model = 0;       // the last one
  int64_t checkpoint = 0;  // one
  int64_t num_kept = 0;    // checkpoints at the end
  /// The most that the run adds, at any one time, to what lies there now. It removes an old
  /// checkpoint only when the new one has been read back, and saves the last model when all
  /// checkpoints are there.
  int64_t most = 0;
};
DiskNeed disk_need(const DiskFacts& facts);

/// Checkpoints between step `from` (0: the start) and the end, by save_strategy.
int64_t num_saves(Interval strategy, int64_t save_steps, int64_t from, int64_t total_steps,
                  int64_t steps_per_epoch);

/// A folder, and the bytes that may still be written there. nullopt: unknown, which counts as room.
struct Room {
  std::string folder;
  std::optional<int64_t> free;

  bool may_take(int64_t bytes) const { return !free || *free >= bytes; }
};

/// Throws UserError where not even the model fits into output_dir, and neither into the run's
/// folder in fallback_output_dir (nullopt: there is none). Otherwise one line that says what will
/// be taken and what is free, and, where that is too little, a warning with the remedy. Empty where
/// the free space of output_dir is unknown.
std::string disk_account(const DiskFacts& facts, const Room& output_dir,
                         const std::optional<Room>& fallback);

/// Throws UserError where the model or a checkpoint cannot be saved because a process may write no
/// file larger than `limit` bytes (ulimit -f; nullopt: there is no limit). Shards of at most
/// `shard_bytes` are filled to more than half, but for single tensors.
void check_file_size(const DiskFacts& facts, std::optional<int64_t> limit, int64_t shard_bytes);

/// "1.5 GiB".
std::string name_bytes(int64_t bytes);

}  // namespace longspan
