#include "longspan/saving/launch.h"

#include <fmt/format.h>

#include <random>

#include "longspan/liveness/agreement.h"
#include "longspan/rendezvous/launcher_store.h"
#include "longspan/saving/checkpoints.h"

namespace longspan {
namespace {

constexpr const char* kKey = "launch";

}  // namespace

std::string own_job(const OutputSettings& config) {
  const std::string& job = config.surroundings.cluster_job;
  return job.empty() ? "" : fmt::format("{} {}", job, config.resume_from_checkpoint);
}

std::string launch_before_requeue(const OutputSettings& config) {
  const std::string job = own_job(config);
  if (job.empty() || !config.surroundings.job_was_requeued) return "";
  for (const FoundCheckpoint& found : find_checkpoints(config)) {
    if (found.has_state && found.job == job) return found.launch;
  }
  return "";
}

Launch find_launch(const OutputSettings& config, const Rendezvous& where, const Group& world) {
  std::string mine;
  all_or_none(world, [&] {
    if (where.rank != 0) return;
    const std::string kept = recall_from_launcher(where, kKey);
    const std::string before = kept.empty() ? launch_before_requeue(config) : kept;
    std::random_device random;
    mine =
        before.empty() ? fmt::format("first {:08x}{:08x}", random(), random()) : "again " + before;
  });
  const std::string text = world.gather_text(mine)[0];
  return {.id = text.substr(text.find(' ') + 1),
          .job = own_job(config),
          .is_restart = text.starts_with("again")};
}

void keep_launch(const Rendezvous& where, const Launch& launch) {
  keep_at_launcher(where, kKey, launch.id);
}

}  // namespace longspan
