#include "longspan/train/run_checkpoints.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "longspan/base/user_error.h"
#include "longspan/liveness/agreement.h"
#include "longspan/report/remarks.h"
#include "longspan/saving/output_folders.h"

namespace longspan {
namespace {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

}  // namespace

RunCheckpoints::RunCheckpoints(const OutputSettings& config, Workers& workers, const Session& model,
                               RunSaving& saving, RunState& state, RunReports& reports)
    : config_(config),
      workers_(workers),
      model_(model),
      saving_(saving),
      state_(state),
      reports_(reports),
      background_(workers.world(), workers.notices()) {
  if (config.save_async) copies_.emplace(model.device());
}

RunTotals RunCheckpoints::resume(const ResumePoint& from, int64_t total_steps) {
  RunTotals totals = from.state.totals;
  all_or_none_patiently(workers_.world(), workers_.notices(), [&] {
    if (totals.progress.step > total_steps) {
      throw UserError(fmt::format(
          "{} is at step {}, and this configuration ends at step {}. Raise num_train_epochs or "
          "max_steps, or name an earlier checkpoint in resume_from_checkpoint.",
          from.folder, totals.progress.step, total_steps));
    }
    state_.restore(from);
    if (workers_.is_main()) reports_.log.training_log().restore(from.folder);
  });
  state_.publish();
  totals.progress.total_steps = total_steps;
  last_saved_step_ = totals.progress.step;
  return totals;
}

void RunCheckpoints::save(const RunTotals& totals) {
  finish(totals);
  const int64_t step = totals.progress.step;
  unless_full(step, [&] {
    is_owed_ = false;
    if (copies_ && begins_in_background(totals)) return;
    const Clock::time_point start = Clock::now();
    save_into(config_.output_dir, totals);
    remark(Seconds(Clock::now() - start).count(), totals.progress);
  });
}

bool RunCheckpoints::begins_in_background(const RunTotals& totals) {
  const Clock::time_point start = Clock::now();
  const int64_t step = totals.progress.step;
  stand_at(totals, step);
  copies_->restart();
  try {
    background_.start(
        saving_.checkpoints.begin(config_.output_dir, step, content_of(totals), *copies_));
  } catch (const std::exception& error) {
    if (!is_agreed(workers_.world(), error) || is_disk_full(error)) throw;
    copies_->wait();  // for copies that have begun
    copies_.reset();
    model_.events().say(fmt::format(
        "warning: save_async: {} From now on the steps wait while a checkpoint is written.",
        error.what()));
    return false;
  }
  under_way_ = totals.progress;
  began_ = start;
  waited_ = Clock::now() - start;
  return true;
}

void RunCheckpoints::go_on() {
  if (!background_.is_busy()) return;
  unless_full(background_.step(),
              [&] { end_of(waited_for([&] { return background_.advance(); })); });
}

void RunCheckpoints::finish(const RunTotals& totals) {
  if (!background_.is_busy()) return;
  const int64_t step = background_.step();
  stand_at(totals, step);
  unless_full(step, [&] { end_of(waited_for([&] { return background_.finish(); })); });
}

void RunCheckpoints::finish_or_warn(const RunTotals& totals) {
  if (!background_.is_busy()) return;
  const int64_t step = background_.step();
  try {
    finish(totals);
  } catch (const std::exception& error) {
    if (!is_agreed(workers_.world(), error)) throw;
    model_.events().say(
        fmt::format("warning: {} is not saved: {}", checkpoint_name(step), error.what()));
  }
}

RunCheckpoints::Written RunCheckpoints::waited_for(const std::function<Written()>& work) {
  const Clock::time_point start = Clock::now();
  Written written = work();
  waited_ += Clock::now() - start;
  return written;
}

void RunCheckpoints::end_of(const Written& write) {
  if (!write) return;
  const double seconds = Seconds(Clock::now() - began_).count();
  saving_.checkpoints.has_saved(write->folder());
  last_saved_step_ = write->step();
  model_.events().tell(CheckpointSaved{.folder = write->folder(),
                                       .step = write->step(),
                                       .in_background = true,
                                       .seconds = seconds,
                                       .waited_seconds = waited_.count(),
                                       .num_bytes = write->num_bytes()});
  remark(seconds, under_way_);
}

void RunCheckpoints::unless_full(int64_t step, const std::function<void()>& save) {
  try {
    save();
  } catch (const std::exception& error) {
    if (!is_agreed(workers_.world(), error) || !is_disk_full(error)) throw;
    is_owed_ = true;
    model_.events().say(
        fmt::format("warning: {} is not saved: {} {}. Later steps save a checkpoint as soon as "
                    "there is room.",
                    checkpoint_name(step), error.what(),
                    saving_.checkpoints.last().empty()
                        ? "There is no checkpoint yet"
                        : fmt::format("{} is whole", saving_.checkpoints.last())));
  }
}

void RunCheckpoints::remark(double seconds, const Progress& progress) {
  if (!config_.surroundings.is_pod || has_said_grace_) return;
  const std::string grace = remark_on_grace(
      seconds, progress.elapsed_seconds / static_cast<double>(std::max<int64_t>(1, progress.step)));
  if (!grace.empty()) model_.events().say(grace);
  has_said_grace_ = true;
}

bool RunCheckpoints::can_catch_up(const RunTotals& totals) const {
  if (!is_owed_ || background_.is_busy()) return false;
  const auto has_room = [&] {
    const int64_t needed = disk_need(saving_.disk(totals.progress.step)).checkpoint;
    return room_in(config_.output_dir).may_take(needed);
  };
  return gather_answers(workers_.world(), workers_.is_main() && has_room())[0];
}

bool RunCheckpoints::save_last(const RunTotals& totals) {
  const int64_t step = totals.progress.step;
  finish_or_warn(totals);
  if (last_saved_step_ == step) return true;
  return !saving_.patient_saver
              .save({.name = checkpoint_name(step),
                     .num_bytes = disk_need(saving_.disk(step)).checkpoint,
                     .remains = saving_.checkpoints.last_text()},
                    output_folders(config_),
                    [&](const std::string& folder) { save_into(folder, totals); })
              .empty();
}

void RunCheckpoints::stand_at(const RunTotals& totals, int64_t step) {
  workers_.heartbeat().stands_at(totals.progress.step,
                                 fmt::format("the saving of {}", checkpoint_name(step)));
}

CheckpointContent RunCheckpoints::content_of(const RunTotals& totals) {
  CheckpointContent content{.parameters = model_.parameters(),
                            .states = {},
                            .sharded = model_.sharded_parameters(),
                            .state = std::nullopt,
                            .texts = {}};
  if (workers_.is_main()) {
    content.texts = reports_.log.training_log().checkpoint_files(totals.progress);
  }
  if (hold_state()) {
    content.state = state_.collect(totals);
    content.states = state_.optimizer_state();
  }
  return content;
}

void RunCheckpoints::save_into(const std::string& output_dir, const RunTotals& totals) {
  const Clock::time_point start = Clock::now();
  const int64_t step = totals.progress.step;
  stand_at(totals, step);
  const SavedCheckpoint saved = saving_.checkpoints.save(output_dir, step, content_of(totals));
  last_saved_step_ = step;
  const double seconds = Seconds(Clock::now() - start).count();
  model_.events().tell(CheckpointSaved{.folder = saved.folder,
                                       .step = step,
                                       .in_background = false,
                                       .seconds = seconds,
                                       .waited_seconds = seconds,
                                       .num_bytes = saved.num_bytes});
}

}  // namespace longspan
