// The simulated accelerator as the program's GPUs: a shared object with the name of the one for
// CUDA, next to a copy of the program. Environment: SIMULATED_DEVICES is the number of devices
// (default 1). SIMULATED_REPORT names a folder in which each process keeps a JSON file with its
// counters at the host's last wait. SIMULATED_HANG=RANK:WAITS makes the host of a rank hang at the
// WAITS-th wait for a device, as in a hanging driver. SIMULATED_ROWS=composed disables the row
// kernels, as if NVRTC were missing.
#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <string_view>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "longspan/comm/backend.h"
#include "longspan/cuda/cuda.h"
#include "longspan/testing/accelerator/accelerator.h"
#include "longspan/testing/accelerator/attention.h"
#include "longspan/testing/accelerator/process_group.h"
#include "longspan/testing/accelerator/simulated_kernels.h"

namespace longspan::testing::accelerator {
namespace {

std::string json_of(const std::map<std::string, int64_t, std::less<>>& counts) {
  std::string text;
  for (const auto& [name, count] : counts) {
    text += fmt::format("{}\"{}\": {}", text.empty() ? "" : ", ", name, count);
  }
  return "{" + text + "}";
}

void report_counts(const Counters& counters) {
  static const char* const folder = std::getenv("SIMULATED_REPORT");
  if (folder == nullptr) return;
  const char* const rank = std::getenv("RANK");
  const std::string text = fmt::format(
      "{{\"rank\": {}, \"launches\": {}, \"host_syncs\": {}, \"bytes_to_device\": {}, "
      "\"bytes_to_host\": {}, "
      "\"launches_of\": {}, \"host_syncs_of\": {}}}\n",
      rank == nullptr ? "0" : rank, counters.launches, counters.host_syncs,
      counters.bytes_to_device, counters.bytes_to_host, json_of(counters.launches_of),
      json_of(counters.host_syncs_of));
  const std::string path = fmt::format("{}/{}.json", folder, getpid());
  if (std::FILE* const file = std::fopen(path.c_str(), "w")) {
    std::fputs(text.c_str(), file);
    std::fclose(file);
  }
}

void hang_where_asked(const Counters& counters) {
  static const char* const asked = std::getenv("SIMULATED_HANG");
  static const char* const own_rank = std::getenv("RANK");
  int rank = 0, waits = 0;
  if (asked == nullptr || own_rank == nullptr) return;
  if (std::sscanf(asked, "%d:%d", &rank, &waits) != 2 || rank != std::atoi(own_rank)) return;
  while (counters.host_syncs >= waits) pause();
}

int num_devices() {
  install();
  Machine::get().after_host_syncs([](const Counters& counters) {
    report_counts(counters);
    hang_where_asked(counters);
  });
  const char* const asked = std::getenv("SIMULATED_DEVICES");
  return asked != nullptr ? std::atoi(asked) : 1;
}

void set_device(int device) { set_current_device(device); }

c10::intrusive_ptr<c10d::Backend> make_backend(const c10::intrusive_ptr<c10d::Store>& store,
                                               int rank, int size, int64_t timeout_seconds,
                                               const c10::intrusive_ptr<c10d::Backend>& /*whole*/,
                                               int /*color*/) {
  return make_group(make_gloo_backend(store, rank, size, timeout_seconds, "127.0.0.1"), store);
}

const char* trouble() { return ""; }

const BlockKernel& attention_kernel(const BlockKernel& /*of_cpu*/, const BlockKernel& /*of_cuda*/) {
  return block_kernel();
}

cuda::Kernels* replacement_kernels(int device) {
  static const char* const asked = std::getenv("SIMULATED_ROWS");
  return asked != nullptr && asked == std::string_view("composed") ? nullptr
                                                                   : &simulated_kernels(device);
}

constexpr CudaEntry kEntry{num_devices,
                           set_device,
                           make_backend,
                           trouble,
                           /*current_stream=*/nullptr,
                           kDeviceType,
                           "simulated accelerator",
                           attention_kernel,
                           replacement_kernels};

}  // namespace
}  // namespace longspan::testing::accelerator

extern "C" __attribute__((visibility("default"))) const longspan::CudaEntry* longspan_cuda_entry() {
  return &longspan::testing::accelerator::kEntry;
}
