// The connected processes of a run.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "longspan/comm/mesh.h"
#include "longspan/liveness/heartbeat.h"
#include "longspan/liveness/notices.h"
#include "longspan/liveness/run_control.h"
#include "longspan/session/run_plan.h"
#include "longspan/settings/model_settings.h"
#include "longspan/settings/parallel_settings.h"

namespace longspan {

/// During the lifetime of this object: tells the other ranks if a stop signal reaches this rank
/// before the first step.
class ToldOfEarlyStops {
 public:
  ToldOfEarlyStops(RunControl& control, const Notices& notices, int rank);
  ~ToldOfEarlyStops() { control_.before_early_stop({}); }
  ToldOfEarlyStops(const ToldOfEarlyStops&) = delete;
  ToldOfEarlyStops& operator=(const ToldOfEarlyStops&) = delete;

 private:
  RunControl& control_;
};

/// During the lifetime of this object: tells the other ranks if a thread of a library (such as
/// NCCL's watchdog) ends this process. If the run's own thread has found a failure just before, the
/// message of the run's thread is printed, because this message may have more information. The
/// library's thread may still end the process.
class ToldOfLostGpus {
 public:
  ToldOfLostGpus(RunControl& control, Heartbeat& heartbeat, const Rendezvous& where);
  ~ToldOfLostGpus();
  ToldOfLostGpus(const ToldOfLostGpus&) = delete;
  ToldOfLostGpus& operator=(const ToldOfLostGpus&) = delete;

  /// Called when the run's thread has met a failure, before the run's thread asks for the cause.
  void has_met(const std::string& failure);
  /// Called when the run's thread is about to print `message` and end the process, up to a few
  /// seconds after this object is destroyed.
  void will_say(const std::string& message);

 private:
  RunControl& control_;
  Heartbeat& heartbeat_;
  bool is_last_ = false;  // will_say() was called
};

/// This rank's connections to the other ranks.
class Workers {
 public:
  /// Waits for all ranks. `control` must outlive this object. Throws UserError. Throws
  /// CommunicationError if the ranks cannot connect.
  Workers(const ParallelSettings& config, const ModelSettings& model, const RunPlan& plan,
          RunControl& control);

  /// Calls meet(), guarded(work) and leave().
  RunEnd run(const std::function<RunEnd()>& work);
  /// Called once, before the first collective of the work. Throws UserError on all ranks if their
  /// configurations differ. Collective.
  void meet();
  /// Runs the work of a rank, or a part of the work. If `work` fails because other ranks have
  /// ended, guarded() finds the ended ranks and throws UserError with the cause. If `work` fails
  /// for another reason, guarded() tells the other ranks. Returns kInterrupted if the other ranks
  /// ended because all ranks were interrupted. After a failure the connections cannot be used.
  RunEnd guarded(const std::function<RunEnd()>& work);
  /// Ends the connections after the last collective; no-op after a failure. Collective.
  void leave();

  const Rendezvous& where() const { return where_; }
  const Mesh& mesh() const { return *mesh_; }  // before a failure
  const Group& world() const { return mesh_->world; }
  bool is_main() const { return where_.rank == 0; }
  Notices& notices() { return notices_; }
  Heartbeat& heartbeat() { return heartbeat_; }

 private:
  RunControl& control_;
  Rendezvous where_;
  Settings settings_;
  Notices notices_;
  ToldOfEarlyStops told_;
  std::unique_ptr<Mesh> mesh_;
  Heartbeat heartbeat_;
  ToldOfLostGpus told_of_lost_gpus_;
};

}  // namespace longspan
