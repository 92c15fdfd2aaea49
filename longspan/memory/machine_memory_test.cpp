#include "longspan/memory/machine_memory.h"

#include <doctest/doctest.h>

#include "longspan/testing/temporary_folder.h"

namespace longspan {
namespace {

constexpr const char* kMeminfo =
    "MemTotal:       1000 kB\nMemFree: 5 kB\nSwapTotal:      24 kB\nSwapFree: 3 kB\n";

TEST_CASE("machine memory: physical memory, or a smaller limit of a control group") {
  const testing::TemporaryFolder root;
  CHECK(machine_memory(root.path).bytes == INT64_MAX);
  root.write("proc/meminfo", kMeminfo);
  CHECK(machine_memory(root.path).bytes == 1024 * 1024);
  CHECK(machine_memory(root.path).limit == "memory and swap space");

  root.write("proc/self/cgroup", "0::/job/step\n");
  root.write("sys/fs/cgroup/job/step/memory.max", "max\n");
  CHECK(machine_memory(root.path).bytes == 1024 * 1024);
  root.write("sys/fs/cgroup/job/memory.max", "4096\n");  // the parent group
  CHECK(machine_memory(root.path).bytes == 4096);
  CHECK(machine_memory(root.path).limit == "the limit of its control group");
  root.write("sys/fs/cgroup/job/step/memory.max", "99999999999\n");
  CHECK(machine_memory(root.path).bytes == 4096);
  root.write("sys/fs/cgroup/memory.max", "2048\n");
  CHECK(machine_memory(root.path).bytes == 2048);
}

TEST_CASE("machine memory: control groups of version 1") {
  const testing::TemporaryFolder root;
  root.write("proc/meminfo", kMeminfo);
  root.write("proc/self/cgroup", "7:cpu,memory:/a\n3:pids:/b\n0::/\n");
  root.write("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "5000\n");
  CHECK(machine_memory(root.path).bytes == 5000);
  root.write("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "9223372036854771712\n");
  CHECK(machine_memory(root.path).bytes == 1024 * 1024);
}

TEST_CASE("machine memory: this machine has some") {
  const MachineMemory memory = machine_memory();
  CHECK(memory.bytes > int64_t{64} << 20);
  CHECK(memory.bytes < int64_t{1} << 60);
  CHECK(memory.text().starts_with("this machine has "));
}

}  // namespace
}  // namespace longspan
