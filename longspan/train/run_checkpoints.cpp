#include "longspan/train/run_checkpoints.h"

#include <fmt/format.h>

#include "longspan/base/user_error.h"
#include "longspan/liveness/agreement.h"
#include "longspan/saving/output_folders.h"

namespace longspan {

RunCheckpoints::RunCheckpoints(const OutputSettings& config, Workers& workers, const Session& model,
                               RunSaving& saving, RunState& state, RunReports& reports)
    : config_(config),
      workers_(workers),
      model_(model),
      saving_(saving),
      state_(state),
      reports_(reports) {}

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
  try {
    save_into(config_.output_dir, totals);
    is_owed_ = false;
  } catch (const std::exception& error) {
    if (!is_agreed(workers_.world(), error) || !is_disk_full(error)) throw;
    is_owed_ = true;
    model_.events().say(fmt::format(
        "warning: checkpoint-{} is not saved: {} Training goes on; {}. The next one is saved as "
        "soon as there is room.",
        totals.progress.step, error.what(),
        saving_.checkpoints.last().empty()
            ? "there is no checkpoint yet"
            : fmt::format("{} is whole", saving_.checkpoints.last())));
  }
}

bool RunCheckpoints::can_catch_up(const RunTotals& totals) const {
  if (!is_owed_) return false;
  const auto has_room = [&] {
    const int64_t needed = disk_need(saving_.disk(totals.progress.step)).checkpoint;
    return room_in(config_.output_dir).may_take(needed);
  };
  return gather_answers(workers_.world(), workers_.is_main() && has_room())[0];
}

bool RunCheckpoints::save_last(const RunTotals& totals) {
  const int64_t step = totals.progress.step;
  if (last_saved_step_ == step) return true;
  return !saving_.patient_saver
              .save({.name = fmt::format("checkpoint-{}", step),
                     .num_bytes = disk_need(saving_.disk(step)).checkpoint,
                     .remains = saving_.checkpoints.last_text()},
                    output_folders(config_),
                    [&](const std::string& folder) { save_into(folder, totals); })
              .empty();
}

void RunCheckpoints::save_into(const std::string& output_dir, const RunTotals& totals) {
  const int64_t step = totals.progress.step;
  workers_.heartbeat().stands_at(step, fmt::format("the saving of checkpoint-{}", step));
  CheckpointContent content{.parameters = model_.parameters(),
                            .states = {},
                            .sharded = model_.sharded_parameters(),
                            .state = std::nullopt,
                            .add_files = [&](const std::string& path) {
                              reports_.log.training_log().write_checkpoint(path, totals.progress);
                            }};
  if (hold_state()) {
    content.state = state_.collect(totals);
    content.states = state_.optimizer_state();
  }
  const std::string folder = saving_.checkpoints.save(output_dir, step, content);
  last_saved_step_ = step;
  model_.events().tell(CheckpointSaved{folder, step});
}

}  // namespace longspan
