// The processes of a run, once they have met.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "longspan/comm/heartbeat.h"
#include "longspan/comm/mesh.h"
#include "longspan/comm/notices.h"
#include "longspan/config/model_settings.h"
#include "longspan/config/parallel_settings.h"
#include "longspan/liveness/host.h"
#include "longspan/train/run_plan.h"

namespace longspan {

/// While this object lives, it tells the other ranks when a signal to stop reaches this rank before
/// the first step.
class ToldOfEarlyStops {
 public:
  ToldOfEarlyStops(Host& host, const Notices& notices, int rank);
  ~ToldOfEarlyStops() { host_.before_early_stop({}); }
  ToldOfEarlyStops(const ToldOfEarlyStops&) = delete;
  ToldOfEarlyStops& operator=(const ToldOfEarlyStops&) = delete;

 private:
  Host& host_;
};

/// While this object lives, it tells the other ranks when a library's own thread ends this process.
/// The run's thread may have met a failure a moment before, and know more of it: what it says then,
/// such a thread says too, whichever of them ends the process.
class ToldOfLostGpus {
 public:
  ToldOfLostGpus(Host& host, Heartbeat& heartbeat, const Rendezvous& where);
  ~ToldOfLostGpus();
  ToldOfLostGpus(const ToldOfLostGpus&) = delete;
  ToldOfLostGpus& operator=(const ToldOfLostGpus&) = delete;

  /// The run's thread has met this failure of its own, and is about to ask who is to blame.
  void has_met(const std::string& failure);
  /// The run's thread is about to say this and to end the process, a few seconds after this object.
  void will_say(const std::string& message);

 private:
  Host& host_;
  Heartbeat& heartbeat_;
  bool is_last_ = false;  // what is said
};

/// This rank's connections to the others.
class Workers {
 public:
  /// Waits for all ranks. `host` outlives it. Throws UserError, and CommunicationError where the
  /// ranks do not find each other.
  Workers(const ParallelSettings& config, const ModelSettings& model, const RunPlan& plan,
          Host& host);

  /// Does the work of a rank. Where it fails because others are gone, finds out who is and throws
  /// UserError with that; tells the others where it fails by itself. Returns kInterrupted where the
  /// others left because all were interrupted.
  RunEnd run(const std::function<RunEnd()>& work);

  const Rendezvous& where() const { return where_; }
  const Mesh& mesh() const { return *mesh_; }
  const Group& world() const { return mesh_->world; }
  bool is_main() const { return where_.rank == 0; }
  Notices& notices() { return notices_; }
  Heartbeat& heartbeat() { return heartbeat_; }

 private:
  Host& host_;
  Rendezvous where_;
  Notices notices_;
  ToldOfEarlyStops told_;
  std::unique_ptr<Mesh> mesh_;
  Heartbeat heartbeat_;
  ToldOfLostGpus told_of_lost_gpus_;
};

}  // namespace longspan
