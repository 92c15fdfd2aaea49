// Readers of a process's inputs about its run: launcher variables, state left by another process.
// They need stores and stages, and so libtorch.
#include <cstdlib>

#include "cli/launcher.h"
#include "cli/process/launcher_environment.h"
#include "longspan/config/config.h"
#include "longspan/saving/training_state.h"
#include "tests/fuzz/fuzz.h"

namespace longspan {
namespace {

using fuzz::Folder;

/// Lines NAME=VALUE; names that no launcher sets are ignored.
FUZZ_READER(launcher_variables) {
  constexpr const char* kNames[] = {"RANK",
                                    "WORLD_SIZE",
                                    "LOCAL_RANK",
                                    "MASTER_ADDR",
                                    "MASTER_PORT",
                                    "LOCAL_WORLD_SIZE",
                                    "SLURM_PROCID",
                                    "SLURM_STEP_ID",
                                    "TORCHELASTIC_USE_AGENT_STORE",
                                    "SLURM_NTASKS",
                                    "SLURM_STEP_NUM_TASKS",
                                    "OMPI_COMM_WORLD_SIZE",
                                    "SLURM_LOCALID",
                                    "SLURM_STEP_NODELIST",
                                    "OMPI_COMM_WORLD_RANK",
                                    "SLURM_NNODES",
                                    "SLURM_STEP_NUM_NODES",
                                    "OMPI_COMM_WORLD_LOCAL_RANK",
                                    "SLURM_JOB_ID",
                                    "PMI_SIZE",
                                    "OMPI_COMM_WORLD_LOCAL_SIZE",
                                    "PMI_RANK",
                                    "MPI_LOCALRANKID",
                                    "SLURM_LAUNCH_NODE_IPADDR",
                                    "NPROC_PER_NODE",
                                    "MPI_LOCALNRANKS",
                                    "NNODES",
                                    "NODE_RANK",
                                    "MAX_RESTARTS",
                                    "SLURM_RESTART_COUNT",
                                    "PET_NNODES",
                                    "PET_NODE_RANK",
                                    "PET_NPROC_PER_NODE",
                                    "PET_MASTER_ADDR",
                                    "PET_MASTER_PORT",
                                    "PET_RDZV_ENDPOINT",
                                    "KUBERNETES_SERVICE_HOST",
                                    "GLOO_SOCKET_IFNAME",
                                    "TENSORBOARD_LOGGING_DIR"};
  for (const char* name : kNames) ::unsetenv(name);
  for (const std::string& line : fuzz::lines(input)) {
    const size_t equals = line.find('=');
    if (equals == std::string::npos) continue;
    for (const char* name : kNames) {
      if (line.substr(0, equals) == name) ::setenv(name, line.c_str() + equals + 1, 1);
    }
  }
  surroundings_of_output();
  const bool launched = is_launched();
  if (launched) {
    const Rendezvous where = rendezvous_from_environment();
    fuzz::require(where.rank >= 0 && where.rank < where.world_size, "a rank is one of the world's");
  } else {
    const LaunchPlan plan = make_launch_plan(Config().parallel, DeviceChoice());
    fuzz::require(plan.world_size() > 0, "some processes are started");
  }
}

FUZZ_READER(training_state) {
  const Folder folder;
  folder.write(kTrainingStateFile, input);
  const TrainingState state = read_training_state(folder.path());
  averages_for(state, 0, 2);
  write_training_state(folder.path(), state);
  read_training_state(folder.path());
  require_same_run("checkpoint", state.identity, RunIdentity(), 1);
}

}  // namespace
}  // namespace longspan
