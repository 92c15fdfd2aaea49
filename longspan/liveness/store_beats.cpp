#include "longspan/liveness/store_beats.h"

#include <fmt/format.h>

#include <numeric>
#include <thread>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "longspan/rendezvous/store.h"

namespace longspan {

std::string key_of_beat(int rank) { return fmt::format("beat{}", rank); }

void post_beat(c10d::Store& store, int rank, const Beat& beat) {
  put_text(store, key_of_beat(rank), text_of(beat));
  if (beat.ending != Beat::Ending::kFailed || !text_at(store, kDiagnosis).empty()) return;
  put_text(store, kDiagnosis, blame(rank, beat, beat, beat.machine));
}

std::vector<std::optional<Beat>> beats_of(c10d::Store& store, const std::vector<int>& ranks) {
  std::vector<std::optional<Beat>> beats;
  std::vector<std::string> keys;
  for (const int rank : ranks) keys.push_back(key_of_beat(rank));
  if (store.hasExtendedApi() && store.check(keys)) {  // two requests, for any number of ranks
    for (const std::vector<uint8_t>& text : store.multiGet(keys)) {
      beats.push_back(beat_from({text.begin(), text.end()}));
    }
    return beats;
  }
  for (const std::string& key : keys) beats.push_back(beat_from(text_at(store, key)));
  return beats;
}

std::vector<std::optional<Beat>> beats_of_all(c10d::Store& store, int world_size) {
  std::vector<int> ranks(world_size);
  std::iota(ranks.begin(), ranks.end(), 0);
  return beats_of(store, ranks);
}

void linger(const std::vector<std::optional<Beat>>& seen, const std::string& own_machine,
            std::chrono::duration<double> interval,
            const std::function<std::vector<std::optional<Beat>>()>& read_beats) {
  const auto start = std::chrono::steady_clock::now();
  const auto lasted = [&](std::chrono::duration<double> time) {
    return std::chrono::steady_clock::now() - start >= time;
  };
  const auto waits_for = [&](size_t rank, const std::optional<Beat>& now) {
    if (!now || has_left(*now, own_machine)) return false;
    if (state_of_process(*now, own_machine) == ProcessState::kStopped) return false;
    // A rank that has not beaten for a while counts as gone.
    return !seen[rank] || now->count > seen[rank]->count || !lasted(kLingers / 2);
  };
  for (bool waits = !seen.empty(); waits && !lasted(kLingers);) {
    waits = false;
    const std::vector<std::optional<Beat>> now = read_beats();
    for (size_t rank = 1; rank < now.size(); ++rank) waits |= waits_for(rank, now[rank]);
    // Ranks that are no longer waited for may still be reading.
    std::this_thread::sleep_for(waits ? interval / 4 : kLeastGap);
  }
}

}  // namespace longspan
