#include "cli/launcher.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <climits>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <thread>

#include "cli/torch_runtime.h"
#include "longspan/comm/mesh.h"
#include "longspan/config/user_error.h"

namespace longspan {

namespace {

namespace fs = std::filesystem;

// torchrun, but quiet when a worker fails: the worker has said why; torchrun would add a page about
// itself. Ends with the worker's own status. SIGTERM and SIGUSR1 are handed on, and what the
// workers make of them is awaited: they save, which takes longer than torchrun's patience. A second
// signal, five seconds later or more, is torchrun's own business: it ends them. Once they have
// ended, how they did is what counts, and what comes until the last instruction changes nothing;
// others are not started then. Where both are held (hold_stop_signals), one thread receives them,
// and the workers, which the main thread starts, begin with them held: until they look, none is
// lost. What comes while some of the workers are there is for all of them.
constexpr const char* kQuietTorchrun = R"(
import glob, logging, os, signal, sys, threading, time
from torch.distributed.elastic.multiprocessing.api import PContext, SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.run import main
logging.disable(logging.ERROR)
handed_on, workers_started, starts, waiting, no_more, over = [], [], PContext.start, [], [], []
def text_of(path):
    try:
        return open(path).read()
    except OSError:
        return ''
def children():
    '''None where the system does not say: /proc is not mounted.'''
    lists = glob.glob('/proc/self/task/*/children')
    if lists:
        return [int(pid) for path in lists for pid in text_of(path).split()]
    # A kernel may lack these (CONFIG_PROC_CHILDREN): whose parent is this process, then?
    parents = {}
    for path in glob.glob('/proc/[0-9]*/stat'):
        fields = text_of(path).rpartition(')')[2].split()
        if fields:
            parents[int(path.split('/')[2])] = int(fields[1])
    return [pid for pid in parents if parents[pid] == os.getpid()] if os.getpid() in parents else None
def told_to_end(number):
    return SignalException('told to end', sigval=signal.Signals(number))
def start(workers):
    if no_more:
        raise told_to_end(no_more[0])
    workers_started.append(False)
    starts(workers)
    workers_started[-1] = True
    if waiting:
        hand_on(waiting.pop(), None)
PContext.start = start
def hand_on(number, frame):
    if over:
        return
    if workers_started and not workers_started[-1]:
        waiting[:] = [number]
        return
    if handed_on and time.monotonic() - handed_on[0] < 5:
        return
    if not workers_started:
        over.append(True)
        name = signal.Signals(number).name
        print(f'Stopped before the first step ({name}): nothing was trained, nothing is lost.', file=sys.stderr)
        sys.exit(0)
    workers = children()
    if handed_on or workers is None:
        raise told_to_end(number)
    handed_on.append(time.monotonic())
    if not workers:
        no_more.append(number)
    for pid in workers:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass
for number in (signal.SIGTERM, signal.SIGUSR1):
    if signal.getsignal(number) != signal.SIG_IGN:
        signal.signal(number, hand_on)
held = signal.pthread_sigmask(signal.SIG_BLOCK, []) & {signal.SIGTERM, signal.SIGUSR1}
def receive():
    signal.pthread_sigmask(signal.SIG_UNBLOCK, held)
    threading.Event().wait()
if held:
    threading.Thread(target=receive, daemon=True).start()
try:
    main()
except ChildFailedError as error:
    rank, failure = error.get_first_failure()
    if failure.exitcode < 0:
        name = signal.Signals(-failure.exitcode).name
        print(f'error: rank {rank} was ended by {name}', file=sys.stderr)
    sys.exit(failure.exitcode if failure.exitcode > 0 else 128 - failure.exitcode)
except SignalException as error:
    sys.exit(128 + error.sigval)
finally:
    over.append(True)
    # Python's own end sets what it handles back to the default, which kills; what is ignored stays so.
    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
)";

std::optional<std::string> environment(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0') return std::nullopt;
  return value;
}

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

/// lib/python3.x/site-packages/torch -> bin of the same environment.
fs::path environment_bin() {
  fs::path prefix = torch_directory();
  for (int level = 0; level < 4; ++level) prefix = prefix.parent_path();
  return prefix / "bin";
}

/// Of the signals that torchrun catches and hands on, those that this process does not ignore:
/// under nohup the workers are to outlive the terminal.
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

/// Their product is the number of ranks, an int.
constexpr int kMostProcesses = 4096, kMostMachines = 65536;

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
  return environment("RANK") || environment("WORLD_SIZE") ||
         rendezvous_from_environment().world_size > 1;
}

LaunchPlan make_launch_plan(const Config& config, const DeviceChoice& device) {
  LaunchPlan plan;
  const std::optional<int> wanted = environment_number("NPROC_PER_NODE", 1, kMostProcesses);
  if (wanted && config.nproc_per_node && *wanted != *config.nproc_per_node) {
    throw UserError(
        fmt::format("nproc_per_node: {} and the environment's NPROC_PER_NODE={} differ; keep one",
                    *config.nproc_per_node, *wanted));
  }
  if (config.nproc_per_node || wanted) {
    plan.processes_per_node = config.nproc_per_node ? *config.nproc_per_node : *wanted;
  } else if (device.cuda()) {
    plan.processes_per_node = device.num_gpus;
  }
  plan.num_nodes = environment_number("NNODES", 1, kMostMachines).value_or(1);
  plan.node_rank = environment_number("NODE_RANK", 0).value_or(0);
  if (plan.node_rank >= plan.num_nodes) {
    throw UserError(fmt::format("NODE_RANK={} does not fit NNODES={}: nodes are counted from 0",
                                plan.node_rank, plan.num_nodes));
  }
  const std::optional<std::string> address = environment("MASTER_ADDR");
  plan.master_port = environment_number("MASTER_PORT", 1);
  if (plan.num_nodes > 1) {
    if (!address) {
      throw UserError(fmt::format(
          "NNODES={} needs MASTER_ADDR, the address of node 0 (and MASTER_PORT, 29500 by default)",
          plan.num_nodes));
    }
    plan.master_port = plan.master_port.value_or(29500);
  }
  plan.master_address = address.value_or(plan.master_address);
  return plan;
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
      fmt::format("--max-restarts={}", environment_number("MAX_RESTARTS", 0).value_or(0)),
      fs::read_symlink("/proc/self/exe").string()};
  words.insert(words.end(), rest.begin(), rest.end());
  words.insert(words.end(), arguments.begin(), arguments.end());

  // torchrun would give each worker one thread; the workers share the cores of this machine.
  const int threads = std::max<int>(
      1, static_cast<int>(std::thread::hardware_concurrency()) / plan.processes_per_node);
  setenv("OMP_NUM_THREADS", std::to_string(threads).c_str(), /*overwrite=*/0);

  if (!quiet) {  // a torchrun that knows nothing of held signals
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
