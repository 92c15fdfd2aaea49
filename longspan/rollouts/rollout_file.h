// Files of rollouts: JSON lines (docs/rollouts.md), read at once or while a sampler appends to
// them. No torch.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "longspan/data/bad_rows.h"
#include "longspan/input/input_file.h"
#include "longspan/rollouts/rollout.h"
#include "longspan/rollouts/rollout_line.h"
#include "longspan/settings/choices.h"

namespace longspan {

/// Reads a whole file, without empty lines. The links between rollouts are good (check_links), and
/// ids differ in the whole file. Bad rollouts are an error with their number and the first five, or
/// (kSkip) are left out, together with the rollouts that continue them; `notes` then gets a
/// sentence. Throws UserError, also for a file without rollouts.
std::vector<Rollout> read_rollouts(const std::string& path, const RolloutRules& rules,
                                   OnBadRow on_bad_row, std::vector<std::string>& notes);

/// A place between two lines of a file, for a reader that continues there in a later run.
struct RolloutPosition {
  int64_t offset = 0;  // bytes before the place
  int64_t line = 0;    // lines before the place
  /// Hash of the last kHashedBytes bytes before the place. Detects a rewritten file.
  uint64_t hash = 0;
  static constexpr int64_t kHashedBytes = 4096;
};

/// Reads a file to which a sampler appends lines. A last line without a line feed waits, because
/// the sampler may still be writing it. The file may be created later.
class RolloutFollower {
 public:
  RolloutFollower(std::string path, RolloutRules rules, RolloutPosition begin = {});

  /// Returns the next rollouts, at most `most`; none: the file has no further whole line. Adds bad
  /// lines to `bad`. The links between rollouts are not checked, since later lines may hold the
  /// parents. Throws UserError if the file was removed, replaced, truncated or rewritten, or if a
  /// line is longer than kMaxLineBytes.
  std::vector<Rollout> next(int64_t most, BadRows& bad);

  /// The place after the last line that next() has read.
  const RolloutPosition& position() const { return position_; }

 private:
  bool open_or_check();
  void check_bytes_before();
  bool read_more(int64_t from);
  bool next_line(std::string& line);
  uint64_t hash_before(int64_t offset) const;
  [[noreturn]] void fail(const std::string& problem) const;

  std::string path_;
  RolloutRules rules_;
  RolloutPosition position_;
  std::optional<InputFile> file_;
  std::string buffer_;    // bytes of the file from begin_ on
  int64_t begin_ = 0;     // offset of the buffer in the file
  int64_t searched_ = 0;  // offset up to which no line feed follows the position
};

}  // namespace longspan
