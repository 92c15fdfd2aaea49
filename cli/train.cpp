// `longspan train`: runs the early checks, then trains or starts the workers that do.
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <sys/prctl.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <thread>

#include "cli/commands.h"
#include "cli/launcher.h"
#include "cli/process/cores.h"
#include "cli/process/early_stops.h"
#include "cli/process/end_process.h"
#include "cli/process/interrupt_watch.h"
#include "cli/process/launcher_environment.h"
#include "cli/process/lost_gpus.h"
#include "cli/process/resources.h"
#include "cli/process/run_config.h"
#include "longspan/base/user_error.h"
#include "longspan/config/config.h"
#include "longspan/cuda/cuda.h"
#include "longspan/cuda/device_choice.h"
#include "longspan/data/dataset.h"
#include "longspan/liveness/agreement.h"
#include "longspan/memory/peak_meter.h"
#include "longspan/models/model_config.h"
#include "longspan/plan/degree_plans.h"
#include "longspan/plan/parallel_plan.h"
#include "longspan/plan/plan_request.h"
#include "longspan/registers/stage.h"
#include "longspan/rendezvous/communication_error.h"
#include "longspan/report/console.h"
#include "longspan/saving/checkpoints.h"
#include "longspan/saving/output_claim.h"
#include "longspan/session/attended_model.h"
#include "longspan/session/trained_model.h"
#include "longspan/train/run.h"

namespace longspan {

namespace {

struct TrainArguments {
  std::string config_path;
  std::vector<std::string> overrides;
};

TrainArguments read_arguments(const Arguments& arguments) {
  if (arguments.empty() || arguments[0].starts_with("--") ||
      arguments[0].find('=') != std::string::npos) {
    throw UserError(
        "train: the configuration file is missing: longspan train config.yaml [key=value ...]");
  }
  return {arguments[0], {arguments.begin() + 1, arguments.end()}};
}

/// Runs the checks that are cheap and the same on all ranks, before any process is started or
/// memory allocated.
void check_early(const Config& config, int world_size, int ranks_per_machine) {
  check_output_folders(config.output, source_folders(config.model, config.preferences));
  const ModelConfig model = model_config_for(config, config.model.model_name_or_path);
  // Links and devices only affect the choice of a plan, not its feasibility.
  const PlanRequest request =
      plan_request({config.model, config.data, config.optimization, config.memory, config.parallel},
                   attended_model(config, model), world_size, ranks_per_machine, /*cuda=*/false);
  if (has_own_degrees(config.parallel)) {
    plans_by_degree(request);
  } else {
    make_parallel_plan(request);
  }
  check_trained_model(config, model);
  check_dataset_files(config.data, stage_of(config.method));
}

/// If its launcher is killed, a worker is told to save and end instead of continuing alone.
void end_with_launcher() {
  if (std::getenv("TORCHELASTIC_RUN_ID") == nullptr) return;
  prctl(PR_SET_PDEATHSIG, SIGTERM);
}

Machine this_machine() {
  return {.find_gpus = find_gpus, .num_threads = at::get_num_threads(), .num_cores = num_cores()};
}

/// Runs one process of a run: handles signals and measures memory. Returns the exit status: 130
/// after SIGINT, 0 after SIGTERM or SIGUSR1 and a save.
int train(const Config& config, const Rendezvous& where) {
  end_soon_with_lost_gpus();  // before any thread may read the environment
  // Never destroyed: it handles signals until the process has ended.
  static InterruptWatch& interrupts = *new InterruptWatch(/*speaks=*/where.rank == 0,
                                                          /*trains=*/config.method.do_train);
  struct EndOfRun {
    int status = 1;
    ~EndOfRun() { interrupts.run_ended(status); }
  } end;
  raise_descriptor_limit();
  choose_threads(where);
  bound_compiled_gemms();
  choose_allocation();
  RunPlan plan;
  rank_0_first(where.rank, [&] { plan = plan_run(config, this_machine(), where); });
  if (plan.device.cuda()) {
    use_gpu(plan.own_gpu(),
            {.deterministic = config.model.full_determinism, .tf32 = config.model.tf32});
  } else {
    use_tensor_pool();
  }
  try {
    PeakMeter meter(device_of(plan.device, plan.own_gpu()));
    Console console(!config.output.disable_tqdm);
    if (where.has_peers()) quiet_c10d();
    const RunResult result = run_training(config, plan, interrupts,
                                          {.meter = &meter, .events = &console, .make_source = {}});
    return end.status = result.end == RunEnd::kInterrupted ? kInterruptedStatus : 0;
  } catch (const FailedElsewhere&) {
    interrupts.run_ended(1);
    // Rank 0 is printing the error; a launcher that sees this process end first would kill it.
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    return 1;
  } catch (const CommunicationError& error) {
    throw UserError(error.what());  // the ranks did not find each other
  }
}

int work_of_train(const TrainArguments& arguments) {
  const Rendezvous where = place_of_worker();
  Config config;
  {
    const EarlyStops stops(/*speaks=*/where.rank == 0);
    rank_0_first(where.rank,
                 [&] { config = load_run_config(arguments.config_path, arguments.overrides); });
  }
  end_with_launcher();
  int status = 1;
  try {
    status = train(config, where);
  } catch (const UserError& error) {
    if (where.world_size == 1) throw;
    claim_last_words();
    end_process_with_error(error.what());
  }
  // Connections to dead ranks may be open, with threads that wait for them.
  if (status != 0 && where.world_size > 1) {
    std::fflush(stdout);
    end_process_at_once(status);
  }
  return status;
}

int run_train(const Arguments& words) {
  // Until something handles them: EarlyStops, an InterruptWatch or torchrun.
  hold_stop_signals();
  const TrainArguments arguments = read_arguments(words);
  if (is_launched()) return work_of_train(arguments);
  std::optional<EarlyStops> stops(std::in_place, /*speaks=*/true);
  const Config config = load_run_config(arguments.config_path, arguments.overrides);
  const DeviceChoice device = choose_device(config.model, find_gpus);
  const LaunchPlan plan = make_launch_plan(config.parallel, device);
  require_gpus(device, plan.processes_per_node);
  check_early(config, plan.world_size(), plan.processes_per_node);
  if (plan.world_size() > 1) {
    quiet_c10d();
    check_meeting_place(plan);
  }
  stops.reset();
  if (plan.world_size() > 1) {
    Arguments all{"train"};
    all.insert(all.end(), words.begin(), words.end());
    launch(plan, all);
  }
  return work_of_train(arguments);
}

constexpr const char* kTrainHelp =
    R"(Fine-tunes a model on conversations, with the keys of LLaMA-Factory.

  longspan train config.yaml
  longspan train config.yaml learning_rate=2e-5 output_dir=runs/2
  longspan train config.yaml --nproc_per_node 2 --sequence_parallel_size 2

A configuration file holds `key: value` lines (YAML, or JSON in a .json file), for example

  model_name_or_path: models/my-model    # a Hugging Face folder
  dataset: my_data                       # a name in data/dataset_info.json
  cutoff_len: 32768
  do_train: true
  output_dir: runs/1
  per_device_train_batch_size: 1
  gradient_accumulation_steps: 8
  learning_rate: 1.0e-5
  num_train_epochs: 2
  nproc_per_node: 2                      # two processes ...
  sequence_parallel_size: 2              # ... share each row

Several processes are started through torchrun. Started by torchrun, mpirun or srun, longspan joins
the processes that it finds. Over several machines: set NNODES, NODE_RANK, MASTER_ADDR and
MASTER_PORT (and NPROC_PER_NODE, or the key nproc_per_node) and type the same on each.
N processes with sequence_parallel_size P are N/P data-parallel groups of P neighbours.
sequence_parallel_mode sets how the processes of a group share a row. Without the key, the program
chooses, and prints the choice at the start. At the end of the run, the program prints the bytes that
the processes sent to each other, and the bytes by formula.

Keys; in brackets the default:
)";

}  // namespace

Command train_command() {
  return {"train", "fine-tune a model: longspan train config.yaml [key=value ...]", kTrainHelp,
          run_train,
          /*computes=*/true};
}

}  // namespace longspan
