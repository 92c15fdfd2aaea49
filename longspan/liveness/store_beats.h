// Reads and writes beats in the run's key-value store.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "longspan/liveness/beat.h"

namespace c10d {
class Store;
}  // namespace c10d

namespace longspan {

/// The key of the diagnosis that all ranks print.
inline constexpr const char* kDiagnosis = "diagnosis";
/// The number of ranks that have asked for a rank to diagnose in the place of rank 0.
inline constexpr const char* kDiagnosing = "diagnosing";

/// Time for which the rank that serves the store waits before its end, so that the other ranks can
/// read from the store.
inline constexpr std::chrono::duration<double> kLingers{4};
/// Lower limit of a wait in linger(), and of the time between two beats.
inline constexpr std::chrono::duration<double> kLeastGap{0.2};

/// Returns the key of a rank's beat.
std::string key_of_beat(int rank);

/// Posts a rank's beat. A failure of this rank also becomes the diagnosis, unless the store has a
/// diagnosis. The store may end with this rank; without a diagnosis, other ranks would then blame
/// missing ranks.
void post_beat(c10d::Store& store, int rank, const Beat& beat);

/// Returns the beats of these ranks; nullopt for a rank without a beat so far.
std::vector<std::optional<Beat>> beats_of(c10d::Store& store, const std::vector<int>& ranks);

/// Returns the beats of all ranks of a run.
std::vector<std::optional<Beat>> beats_of_all(c10d::Store& store, int world_size);

/// Waits until the living ranks have read from the store, for kLingers at most. Rank 0 calls this
/// function before its end, since the store ends with rank 0. `seen`: earlier beats of all ranks.
/// `read_beats` returns their current beats, or an empty vector where the store does not answer.
void linger(const std::vector<std::optional<Beat>>& seen, const std::string& own_machine,
            std::chrono::duration<double> interval,
            const std::function<std::vector<std::optional<Beat>>()>& read_beats);

}  // namespace longspan
