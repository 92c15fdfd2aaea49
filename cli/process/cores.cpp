#include "cli/process/cores.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "longspan/memory/control_group.h"

namespace longspan {
namespace {

/// Returns the number of cores in the affinity mask of a process; 0 if unknown.
int cores_in_mask(pid_t process) {
  // Masks of machines with more cores than a cpu_set_t need a larger set.
  constexpr int kMostCores = 1 << 16;
  cpu_set_t* mask = CPU_ALLOC(kMostCores);
  if (mask == nullptr) return 0;
  const size_t bytes = CPU_ALLOC_SIZE(kMostCores);
  const int count = sched_getaffinity(process, bytes, mask) == 0 ? CPU_COUNT_S(bytes, mask) : 0;
  CPU_FREE(mask);
  return count;
}

/// Returns the parent of a process; 0 if it cannot be read.
pid_t parent_of(pid_t process) {
  std::ifstream file("/proc/" + std::to_string(process) + "/stat");
  std::string line;
  std::getline(file, line);
  // "pid (name) state parent ..."; a name may have spaces and parentheses.
  std::istringstream rest(line.substr(std::min(line.size(), line.rfind(')') + 1)));
  std::string state;
  pid_t parent = 0;
  rest >> state >> parent;
  return parent;
}

/// The processor time of one group, in cores; 0 without a limit.
double limit_of(const GroupFolder& group) {
  // Version 1: -1 is no limit. Version 2: "max 100000" is none.
  std::vector<double> numbers = numbers_in(group, group.version_1 ? "cpu.cfs_quota_us" : "cpu.max");
  if (group.version_1 && numbers.size() == 1) {
    const std::vector<double> period = numbers_in(group, "cpu.cfs_period_us");
    numbers.insert(numbers.end(), period.begin(), period.end());
  }
  const bool is_limit = numbers.size() == 2 && numbers[0] > 0 && numbers[1] > 0;
  return is_limit ? numbers[0] / numbers[1] : 0;
}

}  // namespace

double limit_of_cores(const std::string& root) {
  double least = 0;
  for (const GroupFolder& group : group_folders(root, "cpu")) {
    const double limit = limit_of(group);
    if (limit > 0 && (least == 0 || limit < least)) least = limit;
  }
  return least;
}

int Cores::usable() const {
  const int most = limit > 0 ? static_cast<int>(std::min<double>(limit, of_mask)) : of_mask;
  return std::max(1, most);
}

Cores cores_of_process() {
  Cores cores{.of_mask = cores_in_mask(/*process=*/0), .limit = limit_of_cores(), .bound = false};
  // A script or a container runtime between the launcher and this process has this process's mask.
  for (pid_t process = getppid(); process > 0 && !cores.bound; process = parent_of(process)) {
    cores.bound = cores_in_mask(process) > cores.of_mask;
  }
  if (cores.of_mask == 0) cores.of_mask = static_cast<int>(std::thread::hardware_concurrency());
  return cores;
}

int num_cores() { return cores_of_process().usable(); }

int threads_of_worker(const Rendezvous& where, const Cores& cores) {
  const int processes = std::max(1, where.local_world_size);
  int own = cores.bound ? cores.of_mask : cores.of_mask / processes;
  if (where.threads > 0) own = std::min(cores.of_mask, where.threads);
  if (cores.limit > 0) own = std::min(own, static_cast<int>(cores.limit / processes));
  return std::max(1, own);
}

}  // namespace longspan
