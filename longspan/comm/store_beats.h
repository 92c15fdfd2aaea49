// Beats of ranks in the run's key-value store.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "longspan/comm/beat.h"

namespace c10d {
class Store;
}  // namespace c10d

namespace longspan {

/// Under which name the store has the diagnosis that all ranks print.
inline constexpr const char* kVerdict = "verdict";

/// What the server of the store gives the others to read from it.
inline constexpr std::chrono::duration<double> kLingers{4};
/// The least of it, and the least between two beats.
inline constexpr std::chrono::duration<double> kLeastGap{0.2};

/// Under which name the store has a rank's beat.
std::string key_of_beat(int rank);

/// Posts a rank's beat. A failure of its own is the verdict, too, where there is none yet: with it
/// the store may go, and others wait for ranks that are no longer there.
void post_beat(c10d::Store& store, int rank, const Beat& beat);

/// Beats of these ranks; nothing where there is none yet.
std::vector<std::optional<Beat>> beats_of(c10d::Store& store, const std::vector<int>& ranks);

/// Of all ranks of a run.
std::vector<std::optional<Beat>> beats_of_all(c10d::Store& store, int world_size);

/// The store goes with rank 0's process, which calls this: waits until the ranks that live have
/// read from it, kLingers at most. `seen`: the beats of all as they were; `look` returns them as
/// they are now, or nothing where the store cannot be asked.
void linger(const std::vector<std::optional<Beat>>& seen, const std::string& own_machine,
            std::chrono::duration<double> interval,
            const std::function<std::vector<std::optional<Beat>>()>& look);

}  // namespace longspan
