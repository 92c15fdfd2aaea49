// One rank's sign of life, and what can be read from two of them. No torch.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "longspan/comm/collective_counts.h"

namespace longspan {

std::string own_host();
/// A name that processes share when they see each other in /proc; empty where it cannot be found
/// out.
std::string own_machine();

struct Beat {
  int64_t count = 0;  // one more each time
  std::string host;
  std::string machine;  // the same where processes see each other
  int64_t process = 0;
  int64_t step = 0;
  std::string doing;  // "step 7"
  /// kAsks: a collective has failed here, and this rank is about to read why; kLost: it has read
  /// why.
  enum class Ending { kNone, kFinished, kAsks, kLost, kFailed } ending = Ending::kNone;
  std::string reason;  // of a failure
  StartedCollectives collectives;

  bool operator==(const Beat&) const = default;
};

/// Of several ranks that are to blame, a message names so many.
inline constexpr size_t kMostNamed = 4;

/// Of this process, before its first sign of life.
Beat own_beat(const std::string& doing);

/// The rank of this beat is known to have been in this step, whatever its last sign of life says.
void has_been_in(std::optional<Beat>& beat, int64_t step, const std::string& doing);

std::string text_of(const Beat& beat);
/// nullopt for text that is no beat.
std::optional<Beat> beat_from(const std::string& text);

/// How a process of this machine is.
enum class ProcessState { kUnknown, kRunning, kStopped, kGone };
/// Asks the system and /proc. kUnknown for a process of another machine than `own_machine`, and for
/// one that exists but cannot be inspected; kGone only for one that the system does not know.
ProcessState state_of_process(const Beat& beat, const std::string& own_machine);

/// Whether the rank of this beat reads nothing more from the store: it has said how it ends, or its
/// process is gone.
bool has_left(const Beat& beat, const std::string& own_machine);

/// Compares two readings of a rank's beat and says what the rank did, if it is to blame for a
/// collective that failed: "Rank 2 (host node7, process 1234) has ended without a word; its last
/// sign of life was in step 7." Empty for a rank that lives, or that has left because of others.
std::string blame(int rank, const std::optional<Beat>& earlier, const std::optional<Beat>& later,
                  const std::string& own_machine);

/// Is a rank other than `own_rank` to blame by these beats alone: by what it has said itself, or by
/// what the system knows of it?
bool is_clear_at_once(const std::vector<std::optional<Beat>>& beats, int own_rank,
                      const std::string& own_machine);

/// A sentence for each rank other than `own_rank` that is to blame; empty where none is.
std::string blamed_of(const std::vector<std::optional<Beat>>& earlier,
                      const std::vector<std::optional<Beat>>& later, int own_rank,
                      const std::string& own_machine);

/// The same; where none is to blame, says which ranks are behind, by collectives, else by steps.
std::string diagnosis_of(const std::vector<std::optional<Beat>>& earlier,
                         const std::vector<std::optional<Beat>>& later, int own_rank,
                         const std::string& own_machine);

}  // namespace longspan
