// Events of a run or session, and their sinks: a console, log files, pictures, a user's own
// program. No torch.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "longspan/memory/measured_peak.h"
#include "longspan/report/rank_times.h"
#include "longspan/report/training_log.h"

namespace longspan {

/// A line or table for the user.
struct Said {
  std::string text;
  /// True for a warning about this rank's own machine. Other events come from rank 0 only.
  bool of_any_rank = false;
};
/// A completed step, or the start of the steps. `loss`: NaN if there is none.
struct Stepped {
  Progress progress;
  double loss;
};
/// The loop has ended, with or without its last step.
struct StepsEnded {};
/// An entry for the logs: of the steps since the last entry, of an evaluation, or of the whole
/// training.
struct Logged {
  Progress progress;
  Measured measured;
  LogEntry entry;  // log_entry(progress, measured)
  /// The ranks' times since the last entry, on rank 0; empty for an evaluation and for the whole
  /// training. A rank is missing if none of its steps is known since then.
  std::vector<RankTime> ranks = {};
};
struct CheckpointSaved {
  std::string folder;
  int64_t step;
  bool in_background = false;   // save_async
  double seconds = 0.0;         // from the first copy to the final name
  double waited_seconds = 0.0;  // of these, the time in which no step was computed
  int64_t num_bytes = 0;        // of all files; 0: unknown
};
/// The trained model is complete in a folder, and so are the logs and results of a run.
/// `record_folder`: the folder of logs and results; empty for a session.
struct ModelSaved {
  std::string model_folder, record_folder;
};
/// Peak memory of training in bytes, by rank: after the last step, before anything is saved. Sent
/// only by a run that measures memory (RunParts::meter).
struct MemoryMeasured {
  std::vector<MeasuredPeak> peaks;
};

using Event =
    std::variant<Said, Stepped, StepsEnded, Logged, CheckpointSaved, ModelSaved, MemoryMeasured>;

/// Receives events on the thread of the run.
class EventSink {
 public:
  virtual ~EventSink() = default;
  virtual void take(const Event& event) = 0;
};

/// Sends the events of a rank to its sinks. Ranks other than 0 send only lines about themselves.
class Events {
 public:
  /// `sink`: null: no sink. A sink must outlive this object.
  Events(int rank, EventSink* sink);
  Events(const Events&) = delete;
  Events& operator=(const Events&) = delete;

  /// Adds a sink, which gets each event before the other sinks. The sink must outlive later events.
  void add_first(EventSink& sink) { sinks_.insert(sinks_.begin(), &sink); }
  void tell(const Event& event) const;
  void say(std::string text) const { tell(Said{std::move(text)}); }
  /// Sends the warnings that the library's kernels have deferred (text/deferred_warnings.h).
  void say_deferred_warnings() const;

 private:
  int rank_;
  std::vector<EventSink*> sinks_;
};

}  // namespace longspan
