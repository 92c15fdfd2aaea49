#include "longspan/train/run_results.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <vector>

#include "longspan/liveness/agreement.h"
#include "longspan/liveness/unfinished.h"
#include "longspan/saving/output_folders.h"

namespace longspan {
namespace {

/// Approximate bytes of a run's record: of all files except the log, and of a log entry in both
/// files that contain it.
constexpr int64_t kRecordBytes = 64 << 10, kEntryBytes = 2 << 10;

}  // namespace

RunResults::RunResults(const OutputSettings& config, Workers& workers, const Session& model,
                       RunSaving& saving, RunReports& reports)
    : config_(config),
      workers_(workers),
      model_(model),
      saving_(saving),
      reports_(reports),
      log_(reports.log.training_log()) {}

TrainingResult RunResults::summed_up(const RunTotals& totals) const {
  const SavedModel& saved = saving_.saver.model();
  return {.loss = totals.mean_loss(),
          .seconds = totals.progress.elapsed_seconds,
          .num_samples = static_cast<double>(totals.num_samples),
          .total_flos =
              6.0 * static_cast<double>(totals.progress.num_computed_tokens) *
              static_cast<double>(num_parameters_without_embeddings(saved.all, saved.config.spec))};
}

bool RunResults::save_model(const RunTotals& totals) {
  const Group& world = workers_.world();
  Notices& notices = workers_.notices();
  model_in_ = saving_.patient_saver.save(
      {.name = "the model",
       .num_bytes = disk_need(saving_.disk(totals.progress.step)).model,
       .remains = saving_.checkpoints.last_text()},
      output_folders(config_), [&](const std::string& folder) {
        if (ShardedParameters* sharded = model_.sharded_parameters()) {
          return saving_.saver.save_final_together(folder, *sharded, world, notices);
        }
        all_or_none_patiently(world, notices, [&] {
          if (workers_.is_main()) saving_.saver.save_final(folder, model_.parameters());
        });
      });
  return !model_in_.empty();
}

void RunResults::write_record(const std::string& folder, const RunRecord& record) {
  const UninterruptedScope uninterrupted;
  log_.move_to(folder);  // even if it is there already: returns after it is on disk
  log_.write_state(folder, record.progress);
  log_.write_train_results(record.progress, record.training);
  write_reports(folder, record.sent);
  reports_.memory.write(folder);
  if (record.evaluation) log_.write_eval_results(record.progress, *record.evaluation);
}

bool RunResults::save_record(const RunRecord& record) {
  std::vector<std::string> folders = output_folders(config_);
  std::erase(folders, model_in_);
  folders.insert(folders.begin(), model_in_);
  const std::string where = "the model is in " + model_in_;
  try {
    record_in_ = saving_.patient_saver.save(
        {.name = "the record of the run (logs and results)",
         .num_bytes = kRecordBytes + kEntryBytes * std::ssize(log_.history()),
         .remains = where},
        folders, [&](const std::string& folder) {
          all_or_none_patiently(workers_.world(), workers_.notices(), [&] {
            if (workers_.is_main()) write_record(folder, record);
          });
        });
  } catch (const std::exception& error) {
    if (workers_.is_main() && is_agreed(workers_.world(), error)) {
      model_.events().say(
          fmt::format("warning: {}; the logs and results of the run cannot be written.", where));
    }
    throw;
  }
  if (record_in_.empty()) return false;
  model_.events().tell(ModelSaved{.model_folder = model_in_, .record_folder = record_in_});
  return true;
}

}  // namespace longspan
