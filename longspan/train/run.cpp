#include "longspan/train/run.h"

#include <memory>
#include <string>

#include "longspan/config/config.h"
#include "longspan/liveness/agreement.h"
#include "longspan/saving/launch.h"
#include "longspan/saving/output_claim.h"
#include "longspan/saving/output_folders.h"
#include "longspan/saving/output_room.h"
#include "longspan/train/run_checkpoints.h"
#include "longspan/train/run_data.h"
#include "longspan/train/run_evaluation.h"
#include "longspan/train/run_memory.h"
#include "longspan/train/run_messages.h"
#include "longspan/train/run_model.h"
#include "longspan/train/run_reports.h"
#include "longspan/train/run_results.h"
#include "longspan/train/run_saving.h"
#include "longspan/train/run_start.h"
#include "longspan/train/run_state.h"
#include "longspan/train/shared_data.h"
#include "longspan/train/step.h"
#include "longspan/train/step_schedule.h"
#include "longspan/train/trainer.h"
#include "longspan/train/workers.h"

namespace longspan {
namespace {

/// On rank 0: claims the output folders, so that no other run writes there.
std::unique_ptr<OutputClaim> claim_folders(const Config& config, Workers& workers,
                                           const Launch& launch) {
  std::unique_ptr<OutputClaim> claim;
  // Another machine's lock may take longer to check than the timeout of a collective.
  all_or_none_patiently(workers.world(), workers.notices(), [&] {
    if (workers.is_main())
      claim =
          std::make_unique<OutputClaim>(config, source_folders(config, config), launch.is_restart);
  });
  return claim;
}

RunData read_same_data(const Config& config, const RunPlan& plan, const Moment& moment,
                       Workers& workers, Console& console) {
  require_same_model(workers.world(), plan.model);
  RunData data = share_data(workers.world(), workers.notices(), config.cache_dir, console,
                            [&] { return read_data(config, plan.model, moment, console); });
  require_same_data(workers.world(), data);
  return data;
}

std::unique_ptr<ExampleSource> source_of(const Config& config, const RunParts& parts,
                                         const ExampleSet& train, const Mesh& mesh) {
  if (parts.make_source) return parts.make_source(train, mesh);
  return std::make_unique<Epochs>(
      train, Loader(train.size(), config.per_device_train_batch_size, mesh.data.rank(),
                    mesh.data.size(), !config.disable_shuffling, config.seed));
}

void prepare_folders(const OutputSettings& config, Workers& workers, const Launch& launch) {
  all_or_none(workers.world(), [&] {
    if (!workers.is_main()) return;
    prepare_output_dir(config.output_dir);
    if (!config.fallback_output_dir.empty()) remove_leftovers(fallback_folder(config));
    keep_launch(workers.where(), launch);
  });
}

}  // namespace

RunResult run_training(const Config& config, const RunPlan& plan, Host& host,
                       const RunParts& parts) {
  RunResult result;
  Workers workers(config, config, plan, host);
  result.end = workers.run([&] {
    Console console(/*silent=*/!workers.is_main(), /*shows_progress=*/!config.disable_tqdm);
    const Launch launch = find_launch(config, workers.where(), workers.world());
    const std::unique_ptr<OutputClaim> claim = claim_folders(config, workers, launch);
    RunStart start;
    start.launch = launch;
    start.resumed = find_resume_point(config, workers.world(), workers.notices(), launch, console);
    const Moment moment = moment_of_run(workers.world(), start.resumed);
    const RunData data = read_same_data(config, plan, moment, workers, console);
    RunModel model(config, plan, workers);
    complete_run_start(config, workers.mesh(), plan.model, model.trained(), data, moment,
                       workers.notices(), console, start);
    prepare_folders(config, workers, launch);
    host.begin_steps();
    if (!model.prepare_training(data, host, console)) {
      return say_stopped_before_steps(config, host, console);
    }
    const RunMemory memory = plan_memory(config, plan, data, model.account(), workers);
    model.context().model.keep_feed_forwards(memory.kept.count);
    RunReports reports(config, memory, model, parts.meter, console);
    const std::unique_ptr<ExampleSource> source =
        source_of(config, parts, *data.train, workers.mesh());
    const StepSchedule schedule(config, config, config, source->num_batches());
    TrainingStep step(config, schedule, model, *source, reports, host);
    RunEvaluation evaluation(model, *data.eval, config.per_device_eval_batch_size, host);
    RunSaving saving(config, workers, model, data, start, schedule, host, console);
    RunState state(workers.mesh(), start, saving.saver, model.update(), *source, step.averages());
    RunCheckpoints checkpoints(config, workers, model, saving, state, reports);
    RunResults results(config, workers, model, saving, reports);
    Trainer trainer(workers, schedule, step, evaluation, checkpoints, results, reports);
    if (start.resumed) {
      trainer.resume(*start.resumed);
      start.resumed->in_use.reset();
    }
    const RunTotals& totals = trainer.totals();
    const std::string disk =
        reports.log.open(workers.world(), saving.disk(totals.progress.step), start);
    say_start({config, plan, data, start, model.trained(), schedule, totals.progress,
               reports.memory, disk},
              console);
    const RunEnd end = trainer.train();
    // Everything is saved; later events during cleanup do not change the result.
    host.all_saved(end);
    say_end(config, end, totals.progress, results, saving.checkpoints, host, console);
    result.progress = totals.progress;
    result.loss = totals.mean_loss();
    result.saved_in = results.model_in();
    return end;
  });
  return result;
}

}  // namespace longspan
