#include "cli/launcher.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <climits>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <thread>

#include "cli/process/cores.h"
#include "cli/process/launcher_environment.h"
#include "cli/process/node_environment.h"
#include "cli/process/resources.h"
#include "cli/quiet_torchrun.h"
#include "cli/torch_runtime.h"
#include "longspan/base/user_error.h"
#include "longspan/comm/descriptors.h"
#include "longspan/rendezvous/endpoint.h"
#include "longspan/rendezvous/meeting_place.h"
#include "longspan/rendezvous/within.h"

namespace longspan {

namespace {

namespace fs = std::filesystem;

std::optional<std::string> environment(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0') return std::nullopt;
  return value;
}

/// Limit of a name lookup if the name server does not answer.
constexpr std::chrono::seconds kLookUp{20};
/// Limits of torchrun's wait for the other machines, which is otherwise ddp_timeout.
constexpr int64_t kLeastMeetingSeconds = 60, kMostMeetingSeconds = 600;

std::optional<int> environment_number(const char* name, int least, int most = INT_MAX) {
  const std::optional<std::string> text = environment(name);
  if (!text) return std::nullopt;
  int number = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), number);
  if (error != std::errc() || end != text->data() + text->size() || number < least ||
      number > most) {
    throw UserError(
        fmt::format("environment variable {}={}: wanted is a whole number, at least {}, at most {}",
                    name, *text, least, most));
  }
  return number;
}

int free_port() {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  const bool found = fd >= 0 && bind(fd, reinterpret_cast<sockaddr*>(&address), length) == 0 &&
                     getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) == 0;
  const std::string reason = std::strerror(errno);
  if (fd >= 0) close(fd);
  if (!found) throw UserError("no free TCP port on this machine: " + reason);
  return ntohs(address.sin_port);
}

/// Returns the signals that torchrun forwards, without the signals that this process ignores: under
/// nohup the workers must outlive the terminal.
std::string signals_to_handle(bool with_sigterm) {
  std::string names;
  for (const auto& [signal, name] : {std::pair(SIGTERM, "SIGTERM"),
                                     {SIGINT, "SIGINT"},
                                     {SIGHUP, "SIGHUP"},
                                     {SIGQUIT, "SIGQUIT"}}) {
    if (signal == SIGTERM && !with_sigterm) continue;
    struct sigaction inherited{};
    sigaction(signal, nullptr, &inherited);
    if (inherited.sa_handler != SIG_IGN)
      names += fmt::format("{}{}", names.empty() ? "" : ",", name);
  }
  return names;
}

/// Returns the number that LLaMA-Factory's variable and the operator of the job agree upon.
std::optional<int> agreed(const char* name, std::optional<int> given,
                          const std::optional<int>& of_job) {
  if (given && of_job && *given != *of_job) {
    throw UserError(
        fmt::format("{}={} differs from the job's {} (PET_*, RANK, WORLD_SIZE); keep one", name,
                    *given, *of_job));
  }
  return given ? given : of_job;
}

/// How long torchrun waits for the other machines.
int64_t meeting_seconds(const LaunchPlan& plan) {
  return std::clamp(plan.patience_seconds, kLeastMeetingSeconds, kMostMeetingSeconds);
}

bool is_executable(const fs::path& path) { return access(path.c_str(), X_OK) == 0; }

}  // namespace

void hold_stop_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGUSR1);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
}

bool is_launched() {
  if (node_from_environment()) return false;
  return environment("RANK") || environment("WORLD_SIZE") ||
         rendezvous_from_environment().world_size > 1;
}

Rendezvous place_of_worker() {
  return node_from_environment() ? Rendezvous{} : rendezvous_from_environment();
}

LaunchPlan make_launch_plan(const ParallelSettings& config, const DeviceChoice& device) {
  LaunchPlan plan;
  const std::optional<NodePlace> node = node_from_environment();
  const NodePlace job = node.value_or(NodePlace{});
  plan.is_pod = node.has_value();
  const std::optional<int> wanted =
      agreed("NPROC_PER_NODE", environment_number("NPROC_PER_NODE", 1, kMostProcesses),
             job.processes_per_node);
  if (wanted && config.nproc_per_node && *wanted != *config.nproc_per_node) {
    throw UserError(
        fmt::format("nproc_per_node: {} and the environment's {}NPROC_PER_NODE={} differ; keep one",
                    *config.nproc_per_node, job.processes_per_node ? "PET_" : "", *wanted));
  }
  if (config.nproc_per_node || wanted) {
    plan.processes_per_node = config.nproc_per_node ? *config.nproc_per_node : *wanted;
  } else if (device.cuda()) {
    plan.processes_per_node = device.num_gpus;
  }
  plan.num_nodes =
      agreed("NNODES", environment_number("NNODES", 1, kMostMachines), job.num_nodes).value_or(1);
  const auto node_rank = agreed("NODE_RANK", environment_number("NODE_RANK", 0), job.node_rank);
  if (node && plan.num_nodes > 1 && !node_rank) {
    throw UserError(fmt::format(
        "The job has {} machines, but neither PET_NODE_RANK nor RANK says which of them this is. "
        "Set NODE_RANK.",
        plan.num_nodes));
  }
  plan.node_rank = node_rank.value_or(0);
  if (plan.node_rank >= plan.num_nodes) {
    throw UserError(fmt::format("NODE_RANK={} does not fit NNODES={}: nodes are counted from 0",
                                plan.node_rank, plan.num_nodes));
  }
  std::optional<std::string> address = environment("MASTER_ADDR");
  if (!address) address = job.master_address;
  std::optional<int> port = environment_number("MASTER_PORT", 1);
  if (!port) port = job.master_port;
  if (node && plan.num_nodes == 1) {  // the pod's own name may not have an address yet
    address.reset();
    port.reset();
  }
  if (port) plan.master_port = require_port("MASTER_PORT", *port);
  if (plan.num_nodes > 1) {
    if (!address) {
      throw UserError(fmt::format(
          "NNODES={} needs MASTER_ADDR, the address of node 0 (and MASTER_PORT, 29500 by default)",
          plan.num_nodes));
    }
    plan.master_port = plan.master_port.value_or(29500);
  }
  plan.master_address = bare_host(address.value_or(plan.master_address));
  plan.max_restarts = job.max_restarts.value_or(0);
  plan.patience_seconds = patience_of(config.ddp_timeout).count();
  return plan;
}

void check_meeting_place(const LaunchPlan& plan) {
  const std::chrono::seconds patience =
      std::min<std::chrono::seconds>(kLookUp, std::chrono::seconds(plan.patience_seconds));
  const std::string& host = plan.master_address;
  // The names of a cluster's machines may appear a little after the machines, and those of pods
  // once their images are there.
  const std::chrono::seconds wait =
      plan.is_pod ? std::chrono::seconds(meeting_seconds(plan)) : patience;
  const auto end = std::chrono::steady_clock::now() + wait;
  for (;;) {
    const std::string problem = why_no_address(host, patience);
    if (problem.empty()) break;
    if (plan.num_nodes == 1 || std::chrono::steady_clock::now() > end) {
      throw UserError(fmt::format(
          "MASTER_ADDR={} has no address: {}. Set it to the name or address of node 0{}.", host,
          problem, plan.num_nodes == 1 ? ", or unset it: there is one node" : ""));
    }
    std::this_thread::sleep_for(std::chrono::seconds(1));
  }
  if (plan.num_nodes == 1 && !is_this_machine(host, patience)) {
    throw UserError(fmt::format(
        "MASTER_ADDR={} is another machine, and the run has one node, which is this one. Unset "
        "MASTER_ADDR, or set NNODES and NODE_RANK.",
        host));
  }
  if (!plan.master_port) return;
  if (plan.node_rank == 0) {
    if (const std::string problem = why_not_free(*plan.master_port); !problem.empty()) {
      throw UserError(fmt::format(
          "MASTER_PORT={}: this machine cannot listen at that port: {}. Choose another one{}.",
          *plan.master_port, problem, plan.num_nodes == 1 ? ", or unset it" : ", on all nodes"));
    }
  }
  if (plan.node_rank != 0 || !is_this_machine(host, patience)) {
    require_store_or_nobody(host, *plan.master_port, patience);
  }
}

std::optional<std::string> find_torchrun() {
  if (const auto given = environment("TORCHRUN")) return given;
  const fs::path beside = environment_bin() / "torchrun";
  if (is_executable(beside)) return beside.string();
  const std::string path = environment("PATH").value_or("");
  for (size_t begin = 0; begin < path.size();) {
    const size_t colon = std::min(path.find(':', begin), path.size());
    const fs::path candidate = fs::path(path.substr(begin, colon - begin)) / "torchrun";
    if (is_executable(candidate)) return candidate.string();
    begin = colon + 1;
  }
  return std::nullopt;
}

void launch(const LaunchPlan& plan, const Arguments& arguments) {
  const std::optional<std::string> torchrun = find_torchrun();
  if (!torchrun) {
    throw UserError(
        fmt::format("{} processes are to be started, but there is no torchrun in {} or on PATH. "
                    "Set TORCHRUN to "
                    "it, or start the processes with mpirun or srun.",
                    plan.world_size(), environment_bin().string()));
  }
  raise_descriptor_limit();
  require_descriptors("The launcher of this run", descriptors_of_launcher(plan.world_size()));
  std::vector<std::string> words;
  const fs::path python = environment_bin() / "python3";
  const bool quiet = !environment("TORCHRUN") && is_executable(python);
  if (quiet) {
    words = {python.string(), "-c", kQuietTorchrun};
  } else {
    words = {*torchrun};
  }
  const std::vector<std::string> rest = {
      "--no-python",
      fmt::format("--nnodes={}", plan.num_nodes),
      fmt::format("--node-rank={}", plan.node_rank),
      fmt::format("--nproc-per-node={}", plan.processes_per_node),
      fmt::format("--master-addr={}", plan.master_address),
      fmt::format("--master-port={}", plan.master_port ? *plan.master_port : free_port()),
      fmt::format("--signals-to-handle={}", signals_to_handle(/*with_sigterm=*/!quiet)),
      fmt::format("--max-restarts={}",
                  environment_number("MAX_RESTARTS", 0).value_or(plan.max_restarts)),
      fmt::format("--rdzv-conf=timeout={}", meeting_seconds(plan)),
      fs::read_symlink("/proc/self/exe").string()};
  words.insert(words.end(), rest.begin(), rest.end());
  words.insert(words.end(), arguments.begin(), arguments.end());

  // torchrun would set one thread per worker; the workers share this machine's cores.
  const int threads = std::max(1, num_cores() / plan.processes_per_node);
  setenv("OMP_NUM_THREADS", std::to_string(threads).c_str(), /*overwrite=*/0);

  if (plan.is_pod) remove_node_from_environment();  // torchrun would read it as well
  setenv("LONGSPAN_DDP_TIMEOUT", std::to_string(plan.patience_seconds).c_str(), /*overwrite=*/1);
  // c10d prints a stack trace for every lost connection.
  if (quiet) setenv("TORCH_CPP_LOG_LEVEL", "FATAL", /*overwrite=*/0);

  if (!quiet) {  // the original torchrun does not handle blocked signals
    sigset_t none;
    sigemptyset(&none);
    pthread_sigmask(SIG_SETMASK, &none, nullptr);
  }
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  std::fflush(nullptr);
  execv(argv[0], argv.data());
  throw UserError(fmt::format("cannot start {}: {}", words[0], std::strerror(errno)));
}

}  // namespace longspan
