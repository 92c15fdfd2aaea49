#include "longspan/train/run.h"

#include <memory>
#include <string>

#include "longspan/liveness/agreement.h"
#include "longspan/saving/checkpoints.h"
#include "longspan/saving/launch.h"
#include "longspan/saving/output_claim.h"
#include "longspan/saving/output_folders.h"
#include "longspan/saving/output_room.h"
#include "longspan/train/run_data.h"
#include "longspan/train/run_log.h"
#include "longspan/train/run_messages.h"
#include "longspan/train/run_model.h"
#include "longspan/train/run_start.h"
#include "longspan/train/trainer.h"
#include "longspan/train/workers.h"

namespace longspan {
namespace {

/// Makes the folders the run's own, so that no other run writes there. On rank 0.
std::unique_ptr<OutputClaim> claim_folders(const Config& config, Workers& workers,
                                           const Launch& launch) {
  std::unique_ptr<OutputClaim> claim;
  // Another machine's lock may take longer to see through than a collective waits.
  all_or_none_patiently(workers.world(), workers.notices(), [&] {
    if (workers.is_main()) claim = std::make_unique<OutputClaim>(config, launch.is_restart);
  });
  return claim;
}

RunData read_same_data(const Config& config, const RunPlan& plan, Workers& workers,
                       Console& console) {
  RunData data;
  all_or_none_patiently(workers.world(), workers.notices(),
                        [&] { data = read_data(config, plan.model, console); });
  require_same_data(workers.world(), data);
  return data;
}

void prepare_folders(const Config& config, Workers& workers, const Launch& launch) {
  all_or_none(workers.world(), [&] {
    if (!workers.is_main()) return;
    prepare_output_dir(config.output_dir);
    if (!config.fallback_output_dir.empty()) remove_leftovers(fallback_folder(config));
    keep_launch(workers.where(), launch);
  });
}

}  // namespace

RunResult run_training(const Config& config, const RunPlan& plan, Host& host, PeakMeter* meter) {
  RunResult result;
  Workers workers(config, plan, host);
  result.end = workers.run([&] {
    Console console(/*silent=*/!workers.is_main(), /*shows_progress=*/!config.disable_tqdm);
    const Launch launch = find_launch(config, workers.where(), workers.world());
    const std::unique_ptr<OutputClaim> claim = claim_folders(config, workers, launch);
    const RunData data = read_same_data(config, plan, workers, console);
    RunModel model(config, plan, workers);
    RunStart start = find_run_start(config, workers.mesh(), plan.model, model.trained(), data,
                                    launch, workers.notices(), console);
    prepare_folders(config, workers, launch);
    host.begin_steps();
    if (!model.find_objective(data, host, console)) {
      return say_stopped_before_steps(config, host, console);
    }
    AttentionTraffic traffic = model.traffic();
    ExpertTraffic expert_traffic = model.expert_traffic();
    MemoryReport memory(meter,
                        memory_facts(config, plan.model.spec, plan.parallel, model.parameters(),
                                     row_lengths(*data.train, config.per_device_train_batch_size),
                                     plan.computer()));
    const ModelSaver saver = model.saver(data);
    Checkpoints checkpoints(config, workers.world(), workers.notices(), saver, start.folder());
    PatientSaver patient_saver(workers.world(), workers.notices(), host, console);
    RunLog log(config, console);
    Trainer trainer({.context = model.context(),
                     .objective = model.objective(),
                     .train_examples = *data.train,
                     .eval_examples = *data.eval,
                     .host = host,
                     .notices = workers.notices(),
                     .heartbeat = workers.heartbeat(),
                     .saver = saver,
                     .checkpoints = checkpoints,
                     .patient_saver = patient_saver,
                     .identity = start.identity,
                     .launch = launch,
                     .traffic = traffic,
                     .expert_traffic = expert_traffic,
                     .memory = memory,
                     .log = log.training_log(),
                     .console = console,
                     .sharded = model.sharded()});
    if (start.resumed) {
      trainer.resume(*start.resumed);
      start.resumed->in_use.reset();
    }
    const std::string disk = log.open(workers.world(), trainer, start);
    say_start({config, plan, data, start, model.trained(), trainer, memory, disk}, console);
    const RunEnd end = trainer.train();
    // Everything is saved; nothing that comes while this process clears up changes that.
    host.all_saved(end);
    say_end(config, end, trainer, checkpoints, host, console);
    result.progress = trainer.progress();
    result.loss = trainer.mean_loss();
    result.saved_in = trainer.saved_in();
    return end;
  });
  return result;
}

}  // namespace longspan
