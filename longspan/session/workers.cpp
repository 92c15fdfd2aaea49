#include "longspan/session/workers.h"

#include <fmt/format.h>

#include <chrono>
#include <thread>

#include "longspan/base/user_error.h"
#include "longspan/comm/descriptors.h"
#include "longspan/cuda/cuda.h"
#include "longspan/files/process_identity.h"
#include "longspan/liveness/agreement.h"
#include "longspan/liveness/lost_ranks.h"
#include "longspan/memory/out_of_memory.h"
#include "longspan/rendezvous/communication_error.h"
#include "longspan/rendezvous/within.h"
#include "longspan/session/same_settings.h"
#include "longspan/settings/choices.h"
#include "longspan/text/print.h"

namespace longspan {
namespace {

int64_t timeout_of(const ParallelSettings& config) {
  return patience_of(config.ddp_timeout).count();
}

Link link_of(const ModelSettings& model, bool cuda) {
  if (!cuda) return Link::kGloo;
  if (!uses_nccl(model, cuda)) return Link::kGlooThroughHost;
  return sums_by_nccl(model, cuda) ? Link::kNccl : Link::kNcclByExchange;
}

constexpr const char* kLostSteps =
    "Steps since the last checkpoint are lost; resume_from_checkpoint=true goes on from it.";

/// Time that the run's thread may need to end the process once it knows the cause. Until then the
/// others read from the store that it may serve (Heartbeat::leave).
constexpr std::chrono::seconds kTimeToEnd{12};

/// Tells the other ranks of the failure. Returns the failure with its cause.
std::string blamed_by(Heartbeat& heartbeat, const std::string& failure) {
  const std::string others = heartbeat.diagnosis(failure);
  heartbeat.leave();
  return others.empty() ? failure : failure + " " + others;
}

/// Returns the rendezvous of this start's workers. Each worker first checks that it can open enough
/// file descriptors.
Rendezvous joined(const ParallelSettings& config, const ModelSettings& model, const RunPlan& plan) {
  const Rendezvous& launched = plan.where;
  if (plan.device.cuda()) {
    use_gpu(plan.own_gpu());
    if (gpu_numbers() != GpuNumbers{.deterministic = model.full_determinism, .tf32 = model.tf32}) {
      throw UserError(
          "full_determinism or tf32 differ from the process's numerics on GPUs; the program must "
          "call use_gpu(number, {full_determinism, tf32}) first");
    }
  }
  rank_0_first(launched.rank, [&] {
    require_descriptors("A process of this run",
                        descriptors_of_rank(plan.parallel, launched.serves_store()) +
                            descriptors_of_submeshes(plan.by_degree));
  });
  return joined_start(launched, timeout_of(config));
}

}  // namespace

ToldOfEarlyStops::ToldOfEarlyStops(RunControl& control, const Notices& notices, int rank)
    : control_(control) {
  control_.before_early_stop([&notices, rank](const std::string& signal) {
    notices.announce_stop(fmt::format("rank {} on host {} got {}", rank, own_host(), signal));
  });
}

ToldOfLostGpus::ToldOfLostGpus(RunControl& control, Heartbeat& heartbeat, const Rendezvous& where)
    : control_(control), heartbeat_(heartbeat) {
  control_.before_loss_of_gpus([&heartbeat, &where](const std::string& reason) {
    const std::string what = fmt::format("{} {}", lost_gpus_message(reason), kLostSteps);
    return fmt::format("Rank {} of {}: {}", where.rank, where.world_size,
                       blamed_by(heartbeat, what));
  });
}

ToldOfLostGpus::~ToldOfLostGpus() {
  if (!is_last_) control_.before_loss_of_gpus({});
}

void ToldOfLostGpus::has_met(const std::string& failure) {
  control_.before_loss_of_gpus([&heartbeat = heartbeat_, failure](const std::string&) {
    return blamed_by(heartbeat, failure);
  });
}

void ToldOfLostGpus::will_say(const std::string& message) {
  is_last_ = true;
  control_.before_loss_of_gpus([message](const std::string&) {
    std::this_thread::sleep_for(kTimeToEnd);
    return message;
  });
}

Workers::Workers(const ParallelSettings& config, const ModelSettings& model, const RunPlan& plan,
                 RunControl& control)
    : control_(control),
      where_(joined(config, model, plan)),
      settings_(plan.settings),
      notices_(where_, timeout_of(config)),
      // Set before this rank meets the other ranks, some of which may be ahead.
      told_(control, notices_, where_.rank),
      mesh_(std::make_unique<Mesh>(make_mesh(
          where_, plan.parallel, link_of(model, plan.device.cuda()), timeout_of(config)))),
      heartbeat_(
          where_, timeout_of(config),
          [&control](const std::string& message) { control.lost_others(message); },
          [&control](const std::string& why) { control.told_elsewhere(why); },
          [&control] { return control.launcher_gone(); }),
      told_of_lost_gpus_(control, heartbeat_, where_) {
  notices_.all_have_met();
}

RunEnd Workers::run(const std::function<RunEnd()>& work) {
  return guarded([&] {
    meet();
    const RunEnd end = work();
    shut_down(*mesh_);
    return end;
  });
}

void Workers::meet() {
  heartbeat_.tell_of(mesh_->collectives);
  heartbeat_.meet(world().gather_text(heartbeat_.card())[0]);
  require_same_settings(world(), settings_);
}

void Workers::leave() {
  if (mesh_ != nullptr) shut_down(*mesh_);
}

RunEnd Workers::guarded(const std::function<RunEnd()>& work) {
  // Closing connections waits for their operations, and so for dead ranks.
  const auto leave_open = [&] { static_cast<void>(mesh_.release()); };
  try {
    return work();
  } catch (const CommunicationError& error) {
    leave_open();
    if (control_.requested()) {  // so are the others; one of them was faster
      control_.say("Interrupted; nothing more was saved.");
      return RunEnd::kInterrupted;
    }
    const std::string own = error.of_library ? fmt::format("{} {}", error.what(), kLostSteps) : "";
    if (!own.empty()) told_of_lost_gpus_.has_met(own);
    const std::string diagnosis = heartbeat_.diagnosis(own);
    if (const std::string why = heartbeat_.stop_notice(); !why.empty()) {
      control_.stopped_early(why);
      return RunEnd::kInterrupted;
    }
    const char* nobody = own.empty() ? "\nThe messages of the rank that ended first say why." : "";
    const std::string message =
        (own.empty() ? error.what() : own) +
        (diagnosis.empty() ? nobody : (own.empty() ? "\n" : " ") + diagnosis);
    told_of_lost_gpus_.will_say(message);
    throw LostRanks(message);
  } catch (const AgreedError&) {
    throw;
  } catch (const FailedElsewhere&) {
    throw;
  } catch (const std::exception& error) {
    leave_open();
    const std::string what = describe_failure(error);
    const bool ours = dynamic_cast<const UserError*>(&error) != nullptr;
    if (!ours && !is_out_of_memory(error)) {
      heartbeat_.failed(what);
      throw;
    }
    const std::string message =
        ours || where_.world_size == 1 ? what : fmt::format("rank {}: {}", where_.rank, what);
    told_of_lost_gpus_.has_met(message);
    heartbeat_.failed(what);
    told_of_lost_gpus_.will_say(message);
    if (ours) throw;
    throw UserError(message);
  }
}

}  // namespace longspan
