#include "longspan/train/run_log.h"

#include <fmt/format.h>

#include "longspan/base/user_error.h"
#include "longspan/liveness/agreement.h"
#include "longspan/saving/output_room.h"
#include "longspan/saving/saving.h"
#include "longspan/settings/choices.h"

namespace longspan {

RunLog::RunLog(const OutputSettings& config, const RunConstants& constants, Console& console)
    : config_(config), console_(console), log_(config.output_dir, constants) {
  log_.warn([&](const std::string& text) { console_.say("warning: " + text); });
}

std::string RunLog::open(const Group& world, const DiskFacts& disk, const RunStart& start) {
  std::string account;
  all_or_none(world, [&] {
    if (world.rank() != 0) return;
    account = check_room(config_, disk);
    if (wants_tensorboard(config_)) {
      try {
        tensorboard_.emplace(config_,
                             start.resumed ? start.resumed->state.totals.progress.step : -1);
      } catch (const UserError& error) {
        console_.say(
            fmt::format("warning: {} The run goes on without TensorBoard's files.", error.what()));
      }
    }
    // All checks have passed: from here on the folder belongs to this run.
    remove_reports(config_.output_dir, /*goes_on=*/start.resumed.has_value());
    if (!tensorboard_) return;
    log_.tell([&](const LogEntry& entry) {
      if (const std::string problem = tensorboard_->add(entry); !problem.empty()) {
        console_.say("warning: " + problem);
      }
    });
  });
  return account;
}

}  // namespace longspan
