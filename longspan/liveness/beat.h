// A beat is one rank's heartbeat message. These functions write, read and compare beats. No torch.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "longspan/comm/collective_counts.h"

namespace longspan {

/// Times of the steps that a process has done. Evaluations and checkpoints lie between steps.
struct StepTimes {
  int64_t steps = 0;
  double seconds = 0.0;  // of all these steps
  double waited = 0.0;   // seconds of them in waits for other ranks

  bool operator==(const StepTimes&) const = default;
};

struct Beat {
  int64_t count = 0;  // number of beats so far
  std::string host;
  std::string machine;  // equal for processes that see each other in /proc
  int64_t process = 0;
  int64_t step = 0;
  std::string doing;  // "step 7"
  /// kAsks: a collective has failed on this rank, which is about to read the reason. kLost: this
  /// rank has read the reason.
  enum class Ending { kNone, kFinished, kAsks, kLost, kFailed } ending = Ending::kNone;
  std::string reason;  // of kFailed; of kAsks: a cause that only this rank knows, or ""
  StartedCollectives collectives;
  StepTimes times;

  bool operator==(const Beat&) const = default;
};

/// Most ranks to blame that a message names.
inline constexpr size_t kMostNamed = 4;

/// Returns the first beat of this process.
Beat own_beat(const std::string& doing);

/// Raises the beat's step to `step`: the rank is known to have reached this step, even if its last
/// beat was earlier.
void has_been_in(std::optional<Beat>& beat, int64_t step, const std::string& doing);

std::string text_of(const Beat& beat);
/// Parses a beat; nullopt for any other text.
std::optional<Beat> beat_from(const std::string& text);

/// State of a process of this machine.
enum class ProcessState { kUnknown, kRunning, kStopped, kGone };
/// Asks the system and /proc. Returns kUnknown for a process of another machine than `own_machine`,
/// and for a process that cannot be inspected. Returns kGone only if the system does not know the
/// process, or reports its end.
ProcessState state_of_process(const Beat& beat, const std::string& own_machine);

/// True if the rank will not read from the store again: the rank's last beat reports its end, or
/// its process is gone.
bool has_left(const Beat& beat, const std::string& own_machine);

/// Compares two beats of a rank. If the rank is to blame for a failed collective, returns the
/// rank's fault: "Rank 2 (host node7, process 1234) has ended without a word; its last sign of life
/// was in step 7." Returns "" for a living rank, and for a rank that has ended because of other
/// ranks.
std::string blame(int rank, const std::optional<Beat>& earlier, const std::optional<Beat>& later,
                  const std::string& own_machine);

/// Whether these beats alone show that a rank other than `own_rank` is to blame: by that rank's own
/// message, or by the state of its process.
bool is_clear_at_once(const std::vector<std::optional<Beat>>& beats, int own_rank,
                      const std::string& own_machine);

/// Returns one sentence for each rank other than `own_rank` that is to blame; "" where no rank is.
std::string blamed_of(const std::vector<std::optional<Beat>>& earlier,
                      const std::vector<std::optional<Beat>>& later, int own_rank,
                      const std::string& own_machine);

/// Returns blamed_of(). If no rank is to blame, names the ranks that are behind, by their number of
/// collectives or else by their step.
std::string diagnosis_of(const std::vector<std::optional<Beat>>& earlier,
                         const std::vector<std::optional<Beat>>& later, int own_rank,
                         const std::string& own_machine);

}  // namespace longspan
