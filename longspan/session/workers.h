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

/// Tells the other ranks, for the lifetime of this object, when a stop signal reaches this rank
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

/// Tells the other ranks, for the lifetime of this object, when a thread of a library ends this
/// process. The run's thread may have met a failure just before and know more. The library's thread
/// then prints that message, whichever thread ends the process.
class ToldOfLostGpus {
 public:
  ToldOfLostGpus(RunControl& control, Heartbeat& heartbeat, const Rendezvous& where);
  ~ToldOfLostGpus();
  ToldOfLostGpus(const ToldOfLostGpus&) = delete;
  ToldOfLostGpus& operator=(const ToldOfLostGpus&) = delete;

  /// Called when the run's thread has met a failure, before it asks for the cause.
  void has_met(const std::string& failure);
  /// Called when the run's thread is about to print `message` and end the process, up to a few
  /// seconds after this object is destroyed.
  void will_say(const std::string& message);

 private:
  RunControl& control_;
  Heartbeat& heartbeat_;
  bool is_last_ = false;  // will_say() was called
};

/// This rank's connections to the others.
class Workers {
 public:
  /// Waits for all ranks. `control` must outlive this object. Throws UserError, and
  /// CommunicationError if the ranks do not find each other.
  Workers(const ParallelSettings& config, const ModelSettings& model, const RunPlan& plan,
          RunControl& control);

  /// Calls meet(), guarded(work) and leave().
  RunEnd run(const std::function<RunEnd()>& work);
  /// Called once, before the first collective of the work. Collective.
  void meet();
  /// Runs the work of a rank, or a part of it. If it fails because other ranks are gone, finds out
  /// which and throws UserError with the cause; if it fails by itself, tells the others. Returns
  /// kInterrupted if the others left because all were interrupted. After a failure the connections
  /// are gone.
  RunEnd guarded(const std::function<RunEnd()>& work);
  /// Ends the connections after the last collective; no-op if a failure has ended them. Collective.
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
  Notices notices_;
  ToldOfEarlyStops told_;
  std::unique_ptr<Mesh> mesh_;
  Heartbeat heartbeat_;
  ToldOfLostGpus told_of_lost_gpus_;
};

}  // namespace longspan
