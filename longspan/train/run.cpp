// run_training: from a config to a trained model on disk.
#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <optional>
#include <thread>

#include "longspan/attention/block_kernel.h"
#include "longspan/comm/beat.h"
#include "longspan/comm/communication_error.h"
#include "longspan/comm/cuda.h"
#include "longspan/comm/descriptors.h"
#include "longspan/comm/heartbeat.h"
#include "longspan/comm/notices.h"
#include "longspan/comm/within.h"
#include "longspan/config/user_error.h"
#include "longspan/kernels/gemm.h"
#include "longspan/memory/activation_offload.h"
#include "longspan/memory/out_of_memory.h"
#include "longspan/memory/tensor_pool.h"
#include "longspan/plan/device_choice.h"
#include "longspan/plan/parallel_plan.h"
#include "longspan/plan/plan_checks.h"
#include "longspan/stages/objective.h"
#include "longspan/stages/stage.h"
#include "longspan/text/counted.h"
#include "longspan/text/print.h"
#include "longspan/train/agreement.h"
#include "longspan/train/checkpoints.h"
#include "longspan/train/launch.h"
#include "longspan/train/output_claim.h"
#include "longspan/train/output_folders.h"
#include "longspan/train/output_room.h"
#include "longspan/train/plan_request.h"
#include "longspan/train/reference_cache.h"
#include "longspan/train/remarks.h"
#include "longspan/train/run_data.h"
#include "longspan/train/run_start.h"
#include "longspan/train/summary.h"
#include "longspan/train/tensorboard.h"
#include "longspan/train/threads.h"
#include "longspan/train/trained_model.h"
#include "longspan/train/trainer.h"

namespace longspan {
namespace {

constexpr int kInterruptedStatus = 130;

/// What each rank knows before it has communicated with another.
struct Shape {
  ModelConfig model;
  ParallelPlan plan;
  DeviceChoice device;
  std::string warning;  // of the plan; mostly empty
};

Shape decide_shape(const Config& config, const Rendezvous& where) {
  Shape shape;
  shape.device = choose_device(config, look_for_gpus);
  require_gpus(shape.device, std::max(where.local_world_size, where.local_rank + 1));
  shape.model = model_config_for(config, config.model_name_or_path);
  const PlanRequest request = plan_request(config, spec_of(shape.model), where.world_size,
                                           where.local_world_size, shape.device.cuda());
  shape.plan = make_parallel_plan(request);
  shape.warning = warning_of_shards(request);
  if (shape.device.cuda()) use_gpu_of_rank(where.local_rank);
  return shape;
}

/// After a stop, in a sentence.
std::string how_to_go_on(const Config& config) {
  if (config.save_only_model) return "It holds the model alone, as save_only_model asks.";
  const std::string& from = config.resume_from_checkpoint;
  const bool by_itself = from == "true" || (from.empty() && !config.overwrite_output_dir);
  if (by_itself) return "The same command goes on from there.";
  return fmt::format("The same command with resume_from_checkpoint=true goes on from there{}.",
                     own_job(config).empty() ? "" : "; so does this job, if Slurm requeues it");
}

/// Everything after the ranks have met.
int run_with_peers(const Config& config, const Rendezvous& where, const Shape& shape,
                   at::Device device, const Mesh& mesh, Heartbeat& heartbeat, Notices& notices,
                   InterruptWatch& interrupts) {
  if (device.is_cpu()) use_tensor_pool();
  PeakMeter meter(device);
  const bool is_main = where.rank == 0, cuda = device.is_cuda();
  Console console(/*silent=*/!is_main, /*shows_progress=*/!config.disable_tqdm);
  heartbeat.meet(mesh.world.gather_text(heartbeat.card())[0]);
  const Launch launch = find_launch(config, where, mesh.world);
  std::optional<OutputClaim> claim;
  // Another machine's lock may take longer to see through than a collective waits.
  all_or_none_patiently(mesh.world, notices, [&] {
    if (is_main) claim.emplace(config, launch.is_restart);
  });
  RunData data;
  all_or_none_patiently(mesh.world, notices,
                        [&] { data = read_data(config, shape.model, console); });
  require_same_data(mesh.world, data);

  const std::unique_ptr<SequenceParallel> attention =
      make_attention(shape.plan, mesh, cuda ? cuda_block_kernel() : cpu_block_kernel());
  const bool bf16 = config.bf16 || config.pure_bf16;
  const std::optional<ShardingOptions> sharding = sharding_of(config, mesh, device);
  std::unique_ptr<ActivationOffload> activations;  // outlives every graph
  TrainedModel trained;
  std::unique_ptr<Decoder> model;
  all_or_none_patiently(mesh.world, notices, [&] {
    if (config.offload_activations != "false") {
      const bool on_disk = config.offload_activations == "disk";
      activations =
          std::make_unique<ActivationOffload>(device, on_disk ? config.offload_folder : "");
    }
    trained = load_trained_model(config, shape.model, sharding, device);
    trained.options.activation_store = activations.get();
    model = std::make_unique<Decoder>(spec_of(shape.model), trained.parameters, *attention,
                                      trained.options);
  });
  RunStart start =
      find_run_start(config, mesh, shape.model, trained, data, launch, notices, console);
  std::optional<ResumePoint>& resumed = start.resumed;
  all_or_none(mesh.world, [&] {
    if (!is_main) return;
    prepare_output_dir(config.output_dir);
    if (!config.fallback_output_dir.empty()) remove_leftovers(fallback_folder(config));
    keep_launch(where, launch);
  });

  AttentionTraffic traffic(mesh, shape.plan, attentions_of(spec_of(shape.model)), bf16 ? 2 : 4,
                           !config.disable_gradient_checkpointing,
                           activations && !attention->overlaps_projections(), device);
  interrupts.begin_steps();
  const bool idle_rows = sharding && sharding->stage >= 2;
  std::unique_ptr<Reference> reference;
  if (stage_of(config).has_reference(config)) {
    const auto make = [&] {
      return make_reference(config, trained, shape.model, *model, *attention, sharding, device);
    };
    if (!config.precompute_ref_log_probs) {
      all_or_none_patiently(mesh.world, notices, [&] { reference = make(); });
    } else {
      std::vector<const Example*> examples;
      for (const EncodedExamples* encoded : {&data.train, &data.eval}) {
        for (const Example& example : encoded->examples) examples.push_back(&example);
      }
      const auto stops = [&] { return interrupts.requested() || interrupts.stop_signal() != 0; };
      const ReferenceJob job{config, mesh,     *attention, device, std::move(examples),
                             stops,  idle_rows};
      std::optional<ReferenceTable> table = precompute_reference(job, make, console);
      if (!table) {
        const std::string kept = fmt::format(
            "the reference log-probabilities so far are kept in {}.", config.output_dir);
        if (interrupts.requested()) {
          interrupts.say("Interrupted; " + kept);
          return kInterruptedStatus;
        }
        console.say(
            fmt::format("Stopped before the first step ({}); {}", interrupts.why_stopped(), kept));
        return 0;
      }
      reference = reference_table(std::move(*table));
    }
  }
  const ObjectiveContext context{.config = config,
                                 .mesh = mesh,
                                 .attention = *attention,
                                 .model = *model,
                                 .device = device,
                                 .reference = reference.get(),
                                 .idle_rows = idle_rows};
  const std::unique_ptr<Objective> objective = stage_of(config).make(context);
  PatientSaver patient_saver(mesh.world, notices, interrupts, console);
  RunParameters parameters{.used = trained.held(), .divided = std::nullopt, .reference = {}};
  if (trained.sharded) parameters.divided = trained.sharded->held_bytes();
  if (reference) parameters.reference = reference->held_bytes();
  MemoryReport memory(
      meter,
      memory_facts(config, spec_of(shape.model), shape.plan, parameters,
                   row_lengths(data.train.examples, config.per_device_train_batch_size), cuda));
  const TrainingJob job{.context = context,
                        .objective = *objective,
                        .train_examples = data.train.examples,
                        .eval_examples = data.eval.examples,
                        .interrupts = interrupts,
                        .patient_saver = patient_saver,
                        .traffic = traffic,
                        .memory = memory,
                        .heartbeat = heartbeat,
                        .notices = notices,
                        .identity = start.identity,
                        .launch = launch,
                        .sharded = trained.sharded.get()};
  // Adapters and their optimizer are in fp32; so they are saved.
  const at::ScalarType saved_dtype = trained.lora ? (config.pure_bf16 ? at::kBFloat16 : at::kFloat)
                                                  : trained.options.compute_dtype;
  const ModelSaver saver({shape.model, saved_dtype, config.model_name_or_path, trained.lora,
                          data.chat, trained.specs});
  Checkpoints checkpoints(config, mesh.world, notices, saver, resumed ? resumed->folder : "");
  TrainingLog log(config.output_dir, {.train_batch_size = config.per_device_train_batch_size,
                                      .num_train_epochs = epochs_of(config.num_train_epochs)});
  log.warn([&](const std::string& text) { console.say("warning: " + text); });
  Trainer trainer(job, saver, checkpoints, log, console);
  if (resumed) {
    trainer.resume(*resumed);
    resumed->in_use.reset();
  }
  std::string disk_text;
  std::optional<TensorBoardLog> tensorboard;
  all_or_none(mesh.world, [&] {
    if (!is_main) return;
    disk_text = check_room(config, trainer.disk());
    if (wants_tensorboard(config)) {
      try {
        tensorboard.emplace(config, resumed ? resumed->state.totals.progress.step : -1);
      } catch (const UserError& error) {
        console.say(
            fmt::format("warning: {} The run goes on without TensorBoard's files.", error.what()));
      }
    }
    // Whatever could be refused has been: from here on the folder is this run's.
    remove_reports(config.output_dir, /*goes_on=*/resumed.has_value());
    if (!tensorboard) return;
    log.tell([&](const LogEntry& entry) {
      if (const std::string problem = tensorboard->add(entry); !problem.empty()) {
        console.say("warning: " + problem);
      }
    });
  });
  console.say(summary_of({.config = config,
                          .model = shape.model,
                          .plan = shape.plan,
                          .steps = trainer.steps(),
                          .train_examples = data.train.examples,
                          .eval_examples = data.eval.examples,
                          .num_parameters = trained.num_parameters(),
                          .num_trained = trained.num_trained(),
                          .num_warmup_steps = trainer.num_warmup_steps(),
                          .device = device_text(shape.device)}));
  for (const std::string& remark :
       remarks_at_start({.config = config,
                         .model = shape.model,
                         .plan_warning = shape.warning,
                         .num_rows = std::ssize(data.train.examples),
                         .rows_per_step = start.identity.rows_per_step,
                         .local_world_size = where.local_world_size,
                         .num_cores = static_cast<int>(std::thread::hardware_concurrency()),
                         .cuda = cuda})) {
    console.say(remark);
  }
  if (const std::string text = warning_of_fallback(config); !text.empty()) console.say(text);
  console.say(fmt::format("\n{}", memory.begin(where.local_world_size, cuda)));
  if (!disk_text.empty()) console.say(disk_text);

  if (resumed) {
    console.say(fmt::format("Going on from {}, step {} of {}{}", resumed->folder,
                            trainer.progress().step, trainer.progress().total_steps,
                            trainer.progress().step == trainer.progress().total_steps
                                ? ": nothing is left to train"
                                : ""));
    for (const std::string& change : start.changes) console.say(change);
  }
  const TrainingEnd end = trainer.train();
  // Everything is saved; no signal that comes while this process clears up changes that.
  interrupts.run_ended(end == TrainingEnd::kInterrupted ? kInterruptedStatus : 0);
  if (end == TrainingEnd::kDone) {
    console.say(fmt::format("Saved the model and logs in {}", trainer.saved_in()));
    return 0;
  }
  const std::string where_it_stands =
      fmt::format("after step {} of {}", trainer.progress().step, trainer.progress().total_steps);
  if (end == TrainingEnd::kStopped) {
    console.say(fmt::format("Stopped {} ({}); saved {}. {}", where_it_stands,
                            interrupts.why_stopped(), checkpoints.last(), how_to_go_on(config)));
    return 0;
  }
  if (!trainer.saved_in().empty()) {
    interrupts.say(
        fmt::format("Interrupted {}; the model is in {}, and its logs and results were given up.",
                    where_it_stands, trainer.saved_in()));
    return kInterruptedStatus;
  }
  const bool trained_all = trainer.progress().step == trainer.progress().total_steps;
  interrupts.say(fmt::format(
      "Interrupted {}; {}. {}", where_it_stands,
      trained_all ? "the trained model was given up" : "the step under way was left",
      checkpoints.last().empty() ? "No model was saved."
                                 : "The last checkpoint is " + checkpoints.last() + "."));
  return kInterruptedStatus;
}

/// While this object lives, a signal to stop that reaches this rank before the first step is
/// announced to the others.
class ToldOfEarlyStops {
 public:
  ToldOfEarlyStops(InterruptWatch& interrupts, const Notices& notices, int rank)
      : interrupts_(interrupts) {
    interrupts_.before_early_stop([&notices, rank](const std::string& signal) {
      notices.announce_stop(fmt::format("rank {} on host {} got {}", rank, own_host(), signal));
    });
  }
  ~ToldOfEarlyStops() { interrupts_.before_early_stop({}); }
  ToldOfEarlyStops(const ToldOfEarlyStops&) = delete;
  ToldOfEarlyStops& operator=(const ToldOfEarlyStops&) = delete;

 private:
  InterruptWatch& interrupts_;
};

int run(const Config& config, const Rendezvous& launched, InterruptWatch& interrupts) {
  choose_threads();
  bound_compiled_gemms();
  Shape shape;
  rank_0_first(launched.rank, [&] { shape = decide_shape(config, launched); });
  const int64_t timeout = patience_of(config.ddp_timeout).count();
  const bool serves_store =
      launched.rank == 0 && launched.world_size > 1 && !launched.launcher_hosts_store;
  rank_0_first(launched.rank, [&] {
    require_descriptors("A process of this run", descriptors_of_rank(shape.plan, serves_store));
  });
  const Rendezvous where = joined_start(launched, timeout);
  const bool cuda = shape.device.cuda();
  const at::Device device =
      cuda ? at::Device(at::kCUDA, static_cast<at::DeviceIndex>(where.local_rank))
           : at::Device(at::kCPU);
  if (device.is_cpu()) use_tensor_pool();
  Notices notices(where, timeout);
  // Before this rank meets the others, some of which may be past the meeting before it is.
  const ToldOfEarlyStops told(interrupts, notices, where.rank);
  auto mesh = std::make_unique<Mesh>(make_mesh(where, shape.plan, cuda, timeout));
  Heartbeat heartbeat(
      where, timeout,
      [](const std::string& message) {
        print_err("error: {}\n", message);
        end_process_at_once(1);
      },
      [&interrupts](const std::string& why) { interrupts.told_elsewhere(why); },
      [&interrupts] { return interrupts.launcher_gone(); });
  // Closing connections waits for what is under way on them, and so for ranks that are gone.
  const auto leave_open = [&] { static_cast<void>(mesh.release()); };
  try {
    return run_with_peers(config, where, shape, device, *mesh, heartbeat, notices, interrupts);
  } catch (const CommunicationError& error) {
    leave_open();
    if (interrupts.requested()) {  // and so are the others, of which one was quicker
      interrupts.say("Interrupted; nothing more was saved.");
      return kInterruptedStatus;
    }
    const std::string diagnosis = heartbeat.diagnosis();
    if (const std::string why = heartbeat.stop_notice(); !why.empty()) {
      interrupts.say_stopped_early(why);
      std::fflush(stdout);
      end_process_at_once(0);
    }
    throw UserError(fmt::format("{}\n{}", error.what(),
                                diagnosis.empty() ? "The messages of the rank that ended first say "
                                                    "why."
                                                  : diagnosis));
  } catch (const AgreedError&) {
    throw;
  } catch (const FailedElsewhere&) {
    throw;
  } catch (const std::exception& error) {
    leave_open();
    const std::string what = describe_failure(error);
    heartbeat.failed(what);
    const bool ours = dynamic_cast<const UserError*>(&error) != nullptr;
    if (ours || !is_out_of_memory(error)) throw;
    throw UserError(where.world_size == 1 ? what : fmt::format("rank {}: {}", where.rank, what));
  }
}

}  // namespace

int run_training(const Config& config, const Rendezvous& where) {
  // Whatever comes until the process is gone is for it: it is never destroyed.
  static InterruptWatch& interrupts = *new InterruptWatch(/*speaks=*/where.rank == 0);
  struct EndOfRun {
    int status = 1;
    ~EndOfRun() { interrupts.run_ended(status); }
  } end;
  try {
    return end.status = run(config, where, interrupts);
  } catch (const FailedElsewhere&) {
    interrupts.run_ended(1);
    // Rank 0 is saying what happened; a launcher that sees this process end first would kill it.
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    return 1;
  } catch (const CommunicationError& error) {
    throw UserError(error.what());  // the ranks have not found each other
  }
}

}  // namespace longspan
