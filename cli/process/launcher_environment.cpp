#include "cli/process/launcher_environment.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <optional>

#include "cli/process/node_environment.h"
#include "cli/process/torch_environment.h"
#include "longspan/base/user_error.h"
#include "longspan/rendezvous/endpoint.h"

namespace longspan {
namespace {

std::optional<std::string> text_of(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0') return std::nullopt;
  return value;
}

std::optional<int> number_of(const char* name) {
  std::optional<std::string> text = text_of(name);
  if (!text) return std::nullopt;
  int number = 0;
  auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), number);
  if (error != std::errc() || end != text->data() + text->size()) {
    throw UserError(
        fmt::format("Environment variable {}={} is not a whole number. Launch through "
                    "torchrun, mpirun or srun, which set it.",
                    name, *text));
  }
  return number;
}

int required_number(const char* name, const char* because) {
  std::optional<int> number = number_of(name);
  if (!number) {
    throw UserError(
        fmt::format("Environment variable {} is set but {} is not. Launch through "
                    "torchrun, mpirun or srun, which set both, or unset {}.",
                    because, name, because));
  }
  return *number;
}

// "node[03-07,9],other" -> "node03"
std::string first_host(const std::string& node_list) {
  const size_t end = node_list.find_first_of("[,");
  std::string host = node_list.substr(0, end);
  if (end != std::string::npos && node_list[end] == '[') {
    host += node_list.substr(end + 1, node_list.find_first_of("-,]", end) - end - 1);
  }
  return host;
}

}  // namespace

Rendezvous rendezvous_from_environment() {
  Rendezvous where;
  const bool has_address = text_of("MASTER_ADDR").has_value();
  where.master_address = bare_host(text_of("MASTER_ADDR").value_or(where.master_address));
  if (const auto port = number_of("MASTER_PORT")) {
    where.master_port = require_port("MASTER_PORT", *port);
  }
  const char* launcher = "torchrun";
  const char* rank_name = "RANK";
  const char* size_name = "WORLD_SIZE";

  if (number_of("RANK") || number_of("WORLD_SIZE")) {
    where.rank = required_number("RANK", "WORLD_SIZE");
    where.world_size = required_number("WORLD_SIZE", "RANK");
    where.local_rank = number_of("LOCAL_RANK").value_or(where.rank);
    where.local_world_size = number_of("LOCAL_WORLD_SIZE").value_or(where.world_size);
    where.launcher_hosts_store = text_of("TORCHELASTIC_USE_AGENT_STORE") == "True";
  } else if (number_of("OMPI_COMM_WORLD_SIZE")) {
    launcher = "mpirun", rank_name = "OMPI_COMM_WORLD_RANK", size_name = "OMPI_COMM_WORLD_SIZE";
    where.world_size = *number_of(size_name);
    where.rank = required_number(rank_name, size_name);
    where.local_rank = number_of("OMPI_COMM_WORLD_LOCAL_RANK").value_or(where.rank);
    where.local_world_size = number_of("OMPI_COMM_WORLD_LOCAL_SIZE").value_or(where.world_size);
  } else if (text_of("SLURM_STEP_ID")) {  // 4294967290 in an interactive step: not an int
    launcher = "srun", rank_name = "SLURM_PROCID", size_name = "SLURM_NTASKS";
    if (number_of("SLURM_STEP_NUM_TASKS")) size_name = "SLURM_STEP_NUM_TASKS";
    where.world_size = required_number(size_name, "SLURM_STEP_ID");
    where.rank = required_number(rank_name, "SLURM_STEP_ID");
    where.local_rank = number_of("SLURM_LOCALID").value_or(0);
    where.threads = std::max(0, number_of("SLURM_CPUS_PER_TASK").value_or(0));
    // Newer versions of Slurm name GPUs among other resources: "cpu=8,gres/gpu:1".
    where.has_own_gpus =
        text_of("SLURM_GPUS_PER_TASK") ||
        text_of("SLURM_TRES_PER_TASK").value_or("").find("gpu") != std::string::npos;
    const int nodes =
        number_of("SLURM_STEP_NUM_NODES").value_or(number_of("SLURM_NNODES").value_or(1));
    // An upper limit for the fullest node. Both numbers are checked below, and may be invalid here.
    where.local_world_size =
        nodes > 0 && where.world_size > 0 ? (where.world_size - 1) / nodes + 1 : where.world_size;
    if (!has_address && nodes > 1) {
      // Rank 0 runs on the first node of the step, which may differ from the node of the srun
      // command.
      const auto list = text_of("SLURM_STEP_NODELIST");
      where.master_address =
          list ? first_host(*list) : text_of("SLURM_LAUNCH_NODE_IPADDR").value_or("127.0.0.1");
    }
    if (!text_of("MASTER_PORT")) {  // two jobs may share a node
      where.master_port = 20000 + number_of("SLURM_JOB_ID").value_or(0) % 10000;
    }
  } else if (number_of("PMI_SIZE")) {
    launcher = "mpirun", rank_name = "PMI_RANK", size_name = "PMI_SIZE";
    where.world_size = *number_of(size_name);
    where.rank = required_number(rank_name, size_name);
    where.local_rank = number_of("MPI_LOCALRANKID").value_or(where.rank);
    where.local_world_size = number_of("MPI_LOCALNRANKS").value_or(where.world_size);
  }

  if (where.world_size < 1 || where.rank < 0 || where.rank >= where.world_size) {
    throw UserError(
        fmt::format("{}={} and {}={} do not fit: ranks run from 0 to {} - 1. Launch "
                    "through torchrun, mpirun or srun, which set them.",
                    rank_name, where.rank, size_name, where.world_size, size_name));
  }
  if (!has_address && where.local_world_size < where.world_size &&
      launcher != std::string("srun")) {
    throw UserError(fmt::format(
        "{} started {} processes, {} of them on this machine, but MASTER_ADDR is not set. Set it "
        "to "
        "the address of the machine of rank 0 (with Open MPI: mpirun -x MASTER_ADDR=host ...).",
        launcher, where.world_size, where.local_world_size));
  }
  where.interfaces = text_of("GLOO_SOCKET_IFNAME").value_or("");
  return where;
}

OutputSurroundings surroundings_of_output() {
  const std::optional<std::string> job = text_of("SLURM_JOB_ID");
  return {.logging_dir = text_of("TENSORBOARD_LOGGING_DIR").value_or(""),
          .cluster_job = job ? "slurm " + *job : "",
          .job_was_requeued = std::atoi(text_of("SLURM_RESTART_COUNT").value_or("").c_str()) >= 1,
          .is_pod = is_in_pod(),
          .python = environment_python()};
}

}  // namespace longspan
