#include "longspan/train/run.h"

#include <fmt/format.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "longspan/base/user_error.h"
#include "longspan/config/config.h"
#include "longspan/config/global_batch.h"
#include "longspan/config/training_settings.h"
#include "longspan/liveness/agreement.h"
#include "longspan/registers/stage.h"
#include "longspan/saving/launch.h"
#include "longspan/saving/output_claim.h"
#include "longspan/saving/output_folders.h"
#include "longspan/saving/output_room.h"
#include "longspan/saving/saving.h"
#include "longspan/session/model_update.h"
#include "longspan/session/session.h"
#include "longspan/session/trained_model.h"
#include "longspan/session/workers.h"
#include "longspan/stages/objective.h"
#include "longspan/train/dealt_source.h"
#include "longspan/train/early_source.h"
#include "longspan/train/encoded_data.h"
#include "longspan/train/predictions.h"
#include "longspan/train/reference_cache.h"
#include "longspan/train/run_checkpoints.h"
#include "longspan/train/run_data.h"
#include "longspan/train/run_identity.h"
#include "longspan/train/run_memory.h"
#include "longspan/train/run_messages.h"
#include "longspan/train/run_reports.h"
#include "longspan/train/run_results.h"
#include "longspan/train/run_rollouts.h"
#include "longspan/train/run_saving.h"
#include "longspan/train/run_start.h"
#include "longspan/train/run_state.h"
#include "longspan/train/shared_data.h"
#include "longspan/train/step.h"
#include "longspan/train/step_schedule.h"
#include "longspan/train/stream_source.h"
#include "longspan/train/trainer.h"

namespace longspan {
namespace {

std::function<bool()> stops_of(const RunControl& control) {
  return [&control] { return control.requested() || control.told_to_stop(); };
}

bool trains_on_rollouts(const Config& config) {
  return stage_of(config.method).rollouts != RolloutUse::kNone;
}

/// On rank 0: claims the output folders, so that no other run writes there.
std::unique_ptr<OutputClaim> claim_folders(const Config& config, Workers& workers,
                                           const Launch& launch) {
  std::unique_ptr<OutputClaim> claim;
  // Another machine's lock may take longer to check than the timeout of a collective.
  all_or_none_patiently(workers.world(), workers.notices(), [&] {
    if (workers.is_main())
      claim = std::make_unique<OutputClaim>(
          config.output, source_folders(config.model, config.preferences), launch.is_restart);
  });
  return claim;
}

/// For a configuration that was not loaded for this kind of run.
void require_rows(const Config& config, const RunParts& parts) {
  if (parts.make_source && deals_rows(config.parallel)) {
    throw UserError(
        "sequence_parallel_size: auto and balance_batches deal the rows of a data set, and the "
        "program that started the run gives rows. Set a number, and remove balance_batches.");
  }
  if (parts.make_source && config.data.streaming) {
    throw UserError(
        "streaming reads the rows of dataset, and the program that started the run gives rows. "
        "Remove streaming.");
  }
  if (!config.data.dataset.empty() || trains_on_rollouts(config) || !config.method.do_train) return;
  if (!parts.make_source) {
    throw UserError("dataset is missing: give names from dataset_info.json, or a source of rows");
  }
  if (config.preferences.precompute_ref_log_probs) {
    throw UserError(
        "precompute_ref_log_probs computes a table for the rows of dataset, and dataset is "
        "missing; remove the key");
  }
}

RowSettings rows_of(const Config& config) {
  return {config.model, config.method, config.data, config.optimization.seed};
}

/// `start`: the checkpoint, if any; gets RunStart::texts.
RunData read_same_data(const Config& config, const RunPlan& plan, const RunParts& parts,
                       const LocalTime& template_time, Workers& workers, Events& events,
                       RunStart& start) {
  require_same_model(workers.world(), plan.model);
  const RowSettings rows = rows_of(config);
  all_or_none(workers.world(), [&] { say_model(rows, plan.model, events); });
  const auto read = [&](Events& told, const ExampleTaker& take) {
    return read_data(rows, plan.model, template_time, told, take);
  };
  const EarlyFacts facts{.rows = rows,
                         .preferences = config.preferences,
                         .plan = plan,
                         .template_time = template_time,
                         .resumed = start.resumed ? &start.resumed->state : nullptr,
                         .gives_rows = bool{parts.make_source},
                         .row_makers = stream_settings(config)};
  RunData data = share_data(
      workers.world(), workers.notices(), config.data.cache_dir, events, read,
      rules_of_rows(plan.model, stage_of(config.method)),
      [&] { return row_cache(rows, plan.model, row_settings(config)); },
      early_start(facts, events));
  if (config.data.streaming) data.fingerprint = fingerprint_of_stream(stream_settings(config));
  require_same_data(workers.world(), data);
  std::string texts;
  all_or_none_patiently(workers.world(), workers.notices(), [&] {
    if (workers.is_main()) texts = texts_to_compare(facts, data, events);
  });
  start.texts = workers.world().gather_text(texts)[0];
  return data;
}

std::unique_ptr<ExampleSource> source_of(const Config& config, const RunPlan& plan,
                                         const RunParts& parts, const RolloutParts& rollouts) {
  const ExampleSet& train = *rollouts.data.train;
  const Mesh& mesh = rollouts.session.mesh();
  if (plan.deals_rows) {
    return dealt_source({config.model, config.method, config.data, config.optimization}, plan,
                        train, rollouts.session);
  }
  if (parts.make_source) return parts.make_source(train, mesh);
  if (config.data.streaming) {
    return stream_source(rows_of(config), config.optimization, rollouts.template_time,
                         rollouts.session, rollouts.workers);
  }
  if (trains_on_rollouts(config)) {
    return rollout_source({config.model, config.method, config.preferences, config.data,
                           config.output, config.optimization},
                          rollouts);
  }
  return epochs_of(config.optimization, !config.method.disable_shuffling, mesh.data, rollouts.data);
}

/// Makes the session's reference, objective and optimizer; with precompute_ref_log_probs, first the
/// reference's table. Returns false if the control asked the run to stop. Collective.
bool prepare(Session& session, const Config& config, const RunData& data,
             const RunControl& control) {
  if (!config.preferences.precompute_ref_log_probs ||
      !stage_of(config.method).has_reference(config.preferences)) {
    session.prepare();
    return true;
  }
  const JoinedExamples examples(*data.train, *data.eval);
  const auto stops = stops_of(control);
  const ReferenceJob job{.settings = {config.model, config.method, config.preferences, config.data,
                                      config.optimization},
                         .output_dir = config.output.output_dir,
                         .mesh = session.mesh(),
                         .attention = session.attention(),
                         .device = session.device(),
                         .examples = examples,
                         .stops = stops,
                         .idle_rows = session.idle_rows()};
  std::optional<ReferenceTable> table =
      precompute_reference(job, [&] { return session.make_reference(); }, session.events());
  if (!table) return false;
  session.prepare(reference_table(std::move(*table)));
  return true;
}

Trainer::Evaluation evaluation_of(Session& session, const OptimizationSettings& config,
                                  const RunData& data, Predictions* predictions,
                                  const RunControl& control) {
  if (data.eval->empty()) return {};
  if (predictions != nullptr) return [predictions] { return predictions->evaluate(); };
  return [&session, &data, &examples = *data.eval, batch_size = config.per_device_eval_batch_size,
          &control]() -> std::optional<EvaluationResult> {
    if (data.early && !data.early->wait_for_evaluation(stops_of(control))) return std::nullopt;
    return session.evaluate(examples, batch_size, [&control] { return control.told_to_stop(); });
  };
}

void prepare_folders(const OutputSettings& config, Workers& workers, const Launch& launch) {
  all_or_none(workers.world(), [&] {
    if (!workers.is_main()) return;
    prepare_output_dir(config.output_dir);
    if (!config.fallback_output_dir.empty()) remove_leftovers(fallback_folder(config));
    keep_launch(workers.where(), launch);
  });
}

/// The state of a run before its session is made.
struct Beginning {
  std::unique_ptr<OutputClaim> claim;  // on rank 0
  RunStart start;
  LocalTime template_time;
  RunData data;
};

/// Claims the output folders, finds the checkpoint to resume from, and reads the data. Collective.
Beginning begin_run(const Config& config, const RunPlan& plan, const RunParts& parts,
                    Workers& workers, Events& events) {
  Beginning run;
  run.start.launch = find_launch(config.output, workers.where(), workers.world());
  run.claim = claim_folders(config, workers, run.start.launch);
  if (config.method.do_train) {
    run.start.resumed = find_resume_point(config.output, workers.world(), workers.notices(),
                                          run.start.launch, events);
  }
  all_or_none(workers.world(), [&] { require_rows(config, parts); });
  run.template_time = template_time_of_run(workers.world(), run.start.resumed);
  run.data = read_same_data(config, plan, parts, run.template_time, workers, events, run.start);
  return run;
}

/// Completes the start of the run by its session, and prepares the output folders. Collective.
void complete_start(const Config& config, const RunPlan& plan, const Session& session,
                    Workers& workers, Events& events, Beginning& run) {
  run.start.identity = identity_of(
      {config.method, config.preferences, config.optimization, training_settings(config)},
      workers.mesh(), plan.model, session.trained(), run.data, run.template_time);
  complete_run_start({config.model, config.method, config.preferences, config.data},
                     config.optimization, config.output, workers, events, run.start);
  prepare_folders(config.output, workers, run.start.launch);
}

/// Estimates the memory, and keeps the tensors of the feed-forwards that fit. Collective.
RunMemory memory_of_run(const Config& config, const RunPlan& plan, const RunParts& parts,
                        const Beginning& run, Session& session, Workers& workers) {
  const RunData* data = parts.make_source ? nullptr : &run.data;
  const LongestRow row = longest_row({config.model, config.method, config.preferences, config.data},
                                     config.optimization, plan, data, run.template_time, workers);
  RunMemory memory =
      plan_memory({config.model, config.method, config.preferences, config.optimization,
                   config.memory, plan.model.stored.four_bits(), &config.output},
                  row, plan, session.account(), workers);
  session.context().model.keep_feed_forwards(memory.kept.count);
  return memory;
}

/// Returns null unless evaluations generate. Collective.
std::unique_ptr<Predictions> predictions_of(const Config& config, const Beginning& run,
                                            Session& session, Workers& workers,
                                            const RunControl& control) {
  std::unique_ptr<Predictions> predictions;
  if (!config.method.generation.predict_with_generate) return predictions;
  all_or_none(workers.world(), [&] {
    predictions = std::make_unique<Predictions>(Predictions::Parts{
        .config = {config.model, config.method, config.data, config.optimization.seed},
        .batch_size = config.optimization.per_device_eval_batch_size,
        .rows = *run.data.eval,
        .template_time = run.template_time,
        .session = session,
        .control = control,
        .ranks_here = workers.where().local_world_size});
  });
  return predictions;
}

/// do_predict: answers the rows of evaluation, and writes the answers. Returns false if a rank was
/// told to stop. Collective.
bool predict(Predictions& predictions, int64_t step, Workers& workers, TrainingLog& log,
             Events& events) {
  workers.heartbeat().stands_at(step, "the predictions");
  if (!predictions.evaluate()) return false;
  all_or_none_patiently(workers.world(), workers.notices(), [&] {
    if (workers.is_main()) predictions.write(log);
  });
  events.say(fmt::format("Wrote {}/{}: {}", log.folder(), kAnswersFile, predictions.scores()));
  return true;
}

/// A run without do_train: answers the rows of evaluation. Collective.
RunEnd answer_only(const Config& config, const RunPlan& plan, const RunParts& parts,
                   Workers& workers, RunControl& control, Events& events) {
  const Beginning run = begin_run(config, plan, parts, workers, events);
  say_start_of_answers(config.model, config.notes, config.parallel.ddp_timeout, plan, events);
  all_or_none(workers.world(), [&] {
    if (workers.is_main()) prepare_output_dir(config.output.output_dir);
  });
  Session session(config, plan, workers, events);
  const auto predictions = predictions_of(config, run, session, workers, control);
  control.begin_steps();
  TrainingLog log(config.output.output_dir, {});
  all_or_none(workers.world(), [&] {
    if (!workers.is_main()) return;
    log.restore_results();
    remove_earlier_answers(config.method, log.folder());
  });
  bool answered = true;
  if (config.method.do_eval) {
    const std::optional<EvaluationResult> result = predictions->evaluate();
    answered = result.has_value();
    all_or_none_patiently(workers.world(), workers.notices(), [&] {
      if (result && workers.is_main()) log.write_eval_results({}, *result);
    });
    if (result) events.say("Evaluation: " + predictions->scores());
  }
  if (answered && config.method.generation.do_predict) {
    answered = predict(*predictions, /*step=*/0, workers, log, events);
  }
  if (!answered) control.say("Stopped before all answers were there; no results were written.");
  // Nothing was saved that a later run could use, so the end is never that of a stop with a save.
  const RunEnd end = answered ? RunEnd::kDone : RunEnd::kInterrupted;
  control.all_saved(end);
  return end;
}

/// Continues from the checkpoint, if there is one.
void resume(Trainer& trainer, RunStart& start) {
  if (!start.resumed) return;
  trainer.resume(*start.resumed);
  start.resumed->in_use.reset();
}

}  // namespace

RunResult run_training(const Config& given, const RunPlan& plan, RunControl& control,
                       const RunParts& parts) {
  const Config config = with_global_batch(given, plan.where.world_size);
  RunResult result;
  Workers workers(config.parallel, config.model, plan, control);
  Events events(plan.where.rank, parts.events);
  result.end = workers.run([&] {
    say_network(config.parallel, plan, workers, events);
    if (!config.method.do_train) return answer_only(config, plan, parts, workers, control, events);
    Beginning run = begin_run(config, plan, parts, workers, events);
    RunStart& start = run.start;
    const RunData& data = run.data;
    Session session(config, plan, workers, events);
    complete_start(config, plan, session, workers, events, run);
    const auto predictions = predictions_of(config, run, session, workers, control);
    control.begin_steps();
    if (!prepare(session, config, data, control)) {
      return say_stopped_before_steps(config.output, control, events);
    }
    const RunMemory memory = memory_of_run(config, plan, parts, run, session, workers);
    RunReports reports(config.method, config.optimization, config.output, memory, parts.meter,
                       events);
    const std::unique_ptr<ExampleSource> source = source_of(
        config, plan, parts, {session, workers, data, run.template_time, control, events, start});
    const StepSchedule schedule(config.method, config.optimization, config.output,
                                source->num_batches());
    TrainingStep step(config.optimization, schedule, session, *source, control);
    RunSaving saving({config.model, config.optimization, config.output, workers, session, data,
                      start, schedule, control});
    RunState state(workers.mesh(), start, saving.saver, *source, session);
    RunCheckpoints checkpoints(config.output, workers, session, saving, state, reports);
    RunResults results(config.output, workers, session, saving, reports);
    Trainer trainer(
        {.workers = workers,
         .schedule = schedule,
         .session = session,
         .step = step,
         .evaluate = evaluation_of(session, config.optimization, data, predictions.get(), control),
         .checkpoints = checkpoints,
         .results = results,
         .reports = reports,
         .control = control,
         .rank_times = parts.rank_times});
    resume(trainer, start);
    const RunTotals& totals = trainer.totals();
    const std::string disk =
        reports.log.open(workers.world(), workers.notices(), saving.disk(totals.progress.step),
                         start, all_settings(config));
    const SummarySettings told{config.model, config.method, config.preferences, config.optimization,
                               config.output};
    say_start({told, config.notes, config.parallel.ddp_timeout, plan, data, start,
               session.trained(), schedule, totals.progress, reports.memory, disk},
              events);
    say_layout(plan, workers.world(), events);
    RunEnd end = trainer.train();
    if (end == RunEnd::kDone && config.method.generation.do_predict &&
        !predict(*predictions, totals.progress.step, workers, reports.log.training_log(), events)) {
      events.say(
          "warning: the run was told to stop before it had all predictions: there are none.");
      if (control.requested()) end = RunEnd::kInterrupted;
    }
    if (end == RunEnd::kDone && data.early) data.early->end(stops_of(control));
    if (const std::string rows = source->summary(); !rows.empty()) events.say(rows);
    // Everything is saved; later events during cleanup do not change the result.
    control.all_saved(end);
    say_end({config.output, end, totals.progress, results, saving.checkpoints}, control, events);
    result.progress = totals.progress;
    result.loss = totals.mean_loss();
    result.saved_in = results.model_in();
    return end;
  });
  return result;
}

}  // namespace longspan
