#include "longspan/train/run_log.h"

#include <fmt/format.h>

#include "longspan/base/user_error.h"
#include "longspan/liveness/agreement.h"
#include "longspan/saving/output_room.h"
#include "longspan/saving/saving.h"
#include "longspan/settings/choices.h"

namespace longspan {

RunLog::RunLog(const OutputSettings& config, const RunConstants& constants, Events& events)
    : config_(config), events_(events), log_(config.output_dir, constants) {
  log_.warn([&](const std::string& text) { events_.say("warning: " + text); });
  events_.add_first(*this);
}

void RunLog::take(const Event& event) {
  const Logged* logged = std::get_if<Logged>(&event);
  if (logged == nullptr) return;
  const auto warn = [&](const std::string& problem) {
    if (!problem.empty()) events_.say("warning: " + problem);
  };
  if (tensorboard_) warn(tensorboard_->add(logged->entry));
  if (metrics_) warn(metrics_->add(*logged));
  if (services_) {
    for (const std::string& warning : services_->add(logged->entry)) {
      events_.say("warning: " + warning);
    }
  }
  log_.add(logged->progress, logged->measured);
}

std::string RunLog::open(const Group& world, Notices& notices, const DiskFacts& disk,
                         const RunStart& start,
                         const std::vector<std::pair<std::string, std::string>>& settings) {
  std::string account;
  all_or_none_patiently(world, notices, [&] {  // services may take minutes to begin
    if (world.rank() != 0) return;
    account = check_room(config_, disk);
    if (!config_.metrics_file.empty()) metrics_.emplace(config_.metrics_file);
    if (wants_tensorboard(config_)) {
      try {
        tensorboard_.emplace(config_,
                             start.resumed ? start.resumed->state.totals.progress.step : -1);
      } catch (const UserError& error) {
        events_.say(
            fmt::format("warning: {} The run goes on without TensorBoard's files.", error.what()));
      }
    }
    if (std::vector<std::string> services = services_of(config_); !services.empty()) {
      services_.emplace(config_, std::move(services), settings);
      for (const std::string& address : services_->addresses()) events_.say(address);
    }
    // All checks have passed: from here on the folder belongs to this run.
    remove_reports(config_.output_dir, /*goes_on=*/start.resumed.has_value());
  });
  return account;
}

}  // namespace longspan
