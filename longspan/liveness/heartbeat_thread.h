// The thread of a rank's heartbeat: beats, checks of the other ranks, diagnoses.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "longspan/liveness/beat.h"
#include "longspan/liveness/heartbeat.h"
#include "longspan/liveness/stall_detector.h"
#include "longspan/liveness/store_watchdog.h"

namespace c10d {
class Store;
}  // namespace c10d

namespace longspan {

/// Time between two checks of the others, in beats: a living rank has beaten in between.
inline constexpr double kBeatsBetweenChecks = 2.5;
/// Time in which rank 0 sees a question and answers it, in beats.
inline constexpr double kBeatsOfAnswer = kBeatsBetweenChecks + 2.5;
/// The readers of beats that a rank waits for at most: later ones read together.
inline constexpr int64_t kMostReadersBefore = 3;

/// Shared with the thread, which is left behind where it hangs in a silent store.
struct Heartbeat::Impl {
  using Clock = std::chrono::steady_clock;
  using Seconds = std::chrono::duration<double>;
  using Beats = std::vector<std::optional<Beat>>;

  Impl(const Rendezvous& rendezvous, int64_t timeout_seconds, EndProcess end, OnStopNotice on_stop,
       OnLauncherGone on_gone);
  ~Impl();
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  /// The body of the thread, which alone uses `store`.
  void beat_on();
  /// The body of a second thread.
  void watch_store_requests();
  std::string store_is_gone() const;

  /// Returns whether the store answered.
  bool on_store(const std::function<void()>& use);
  void read_stop_notice();
  /// Ends the run, which needs the store. The ranks save first, without the store.
  void end_without_launcher();
  /// Takes another rank's diagnosis, or makes one. `reached`: the store has this rank's question.
  /// `later`: receives the beats of all ranks, if this rank makes a diagnosis.
  std::string diagnose(bool reached, Beats& later);
  /// Waits for the diagnosis of a rank that reads the beats for all ranks that ask: rank 0, or else
  /// one of num_readers_before(). If each rank read them, the store would send a number of beats
  /// that grows with the square of the ranks. Returns "" if there is none in the time of a few
  /// beats for each of `num_others`, or if rank 0 has left.
  std::string diagnosis_of_another(bool by_rank_0, int64_t num_others = 1);
  /// Returns how many ranks have asked for a reader in the place of rank 0 before this rank. Each
  /// of them reads the beats in its turn if those before it are lost.
  int64_t num_readers_before();
  /// Compares two readings of all beats, some time apart; or takes another rank's diagnosis.
  std::string own_diagnosis(bool reached, Beats& later);
  /// On rank 0: makes the diagnosis for ranks that ask, while this rank itself has met no failure.
  void answer_questions(const Beats& now);
  /// Tells the others of this rank's own failure. Returns whether there is one.
  bool posts_own_failure();
  /// Gives the living ranks time to read from the store, which ends with this process.
  void linger(const Beats& seen);
  /// Rank 0 watches all ranks. The others watch rank 0, whose diagnosis holds for all.
  void watch();

  const Rendezvous where;
  const EndProcess end_process;
  const OnStopNotice on_stop_notice;
  const OnLauncherGone on_launcher_gone;
  const Seconds timeout, interval;

  std::mutex mutex;
  std::condition_variable wake, told;
  Beat own = own_beat("set-up");  // the next beat
  int64_t posted_count = 0;
  bool stop = false, done = false, asked = false, answered = false, urgent = false;
  bool moved = false;  // to another step
  // The step before the current one. All ranks were in it, since a step ends with a sum over all.
  int64_t passed_step = 0;
  std::string passed;
  std::string answer, stop_notice;
  std::string own_failure;  // as reported by the main thread
  std::shared_ptr<const CollectiveCounts> collectives;
  StoreSilence store_silence;
  bool reachable = true;     // the store answered the last question
  std::optional<Beat> head;  // last beat of rank 0
  Beats of_all;              // on rank 0
  StoreWatchdog store_watchdog;

  // Used only by the thread.
  c10::intrusive_ptr<c10d::Store> store;
  std::string seen_diagnosis;
  bool heard = false;  // this rank has confirmed the stop notice
  SilenceDetector silence;
  StallDetector stalls;
  std::optional<Clock::time_point> noticed;
  std::optional<Clock::time_point> questions_since;  // on rank 0: when `at_question` was read
  Beats at_question;
  std::optional<Clock::time_point> refused_since;  // since the store's port refuses connections
};

}  // namespace longspan
