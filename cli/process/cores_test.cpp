#include "cli/process/cores.h"

#include <doctest/doctest.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>

#include "longspan/testing/temporary_folder.h"

namespace longspan {
namespace {

/// The result of a function in a child process, whose affinity and environment it may change.
int in_child(const std::function<int()>& work) {
  const pid_t child = ::fork();
  if (child == 0) _exit(work());
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST_CASE("cores: the least limit of the control groups, versions 1 and 2") {
  const testing::TemporaryFolder root;
  CHECK(limit_of_cores(root.path) == 0);
  root.write("proc/self/cgroup", "0::/pod/container\n");
  root.write("sys/fs/cgroup/pod/container/cpu.max", "max 100000\n");
  CHECK(limit_of_cores(root.path) == 0);
  root.write("sys/fs/cgroup/pod/cpu.max", "350000 100000\n");
  CHECK(limit_of_cores(root.path) == 3.5);
  root.write("sys/fs/cgroup/cpu.max", "200000 100000\n");
  CHECK(limit_of_cores(root.path) == 2);

  // The path is that of the machine, and the container sees its own group at the top.
  const testing::TemporaryFolder old;
  old.write("proc/self/cgroup", "5:memory:/a\n4:cpu,cpuacct:/kubepods/pod1\n");
  old.write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "400000\n");
  old.write("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  CHECK(limit_of_cores(old.path) == 4);
  old.write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n");
  CHECK(limit_of_cores(old.path) == 0);
}

TEST_CASE("cores: threads of a worker, by the launcher's number or binding, or an equal share") {
  Rendezvous where;
  const auto threads = [&](const Cores& cores) { return threads_of_worker(where, cores); };
  CHECK(threads({.of_mask = 12}) == 12);
  CHECK(threads({.of_mask = 12, .limit = 3.5}) == 3);
  where.world_size = 8;
  where.local_world_size = 4;
  CHECK(threads({.of_mask = 12}) == 3);
  CHECK(threads({.of_mask = 2}) == 1);
  CHECK(threads({.of_mask = 2, .bound = true}) == 2);
  // Four processes with 16 cores each in a container that may use 24.
  CHECK(threads({.of_mask = 16, .limit = 24, .bound = true}) == 6);
  where.threads = 5;
  CHECK(threads({.of_mask = 12}) == 5);
  CHECK(threads({.of_mask = 3}) == 3);
}

TEST_CASE("cores: a process with fewer cores than its launcher is bound, also below a script") {
  CHECK(num_cores() >= 1);
  if (num_cores() == 1) return;  // nothing to take away
  const auto bind_to_one_core = [] {
    cpu_set_t mask;
    CPU_ZERO(&mask);
    CPU_SET(sched_getcpu(), &mask);
    sched_setaffinity(0, sizeof(mask), &mask);
  };
  const auto facts = [] {
    const Cores cores = cores_of_process();
    return (cores.bound ? 1 : 0) + 10 * cores.of_mask;
  };
  CHECK(in_child([&] {
          bind_to_one_core();
          return facts();
        }) == 11);
  CHECK(in_child([&] {
          bind_to_one_core();
          return in_child(facts);
        }) == 11);
}

}  // namespace
}  // namespace longspan
