#include "longspan/memory/activation_offload.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <sys/resource.h>

#include <csignal>
#include <filesystem>

#include "longspan/base/user_error.h"
#include "longspan/memory/counting_allocator.h"
#include "longspan/memory/host_memory.h"
#include "longspan/memory/spill_file.h"
#include "longspan/testing/temporary_folder.h"

namespace longspan {
namespace {

namespace fs = std::filesystem;
constexpr int64_t kMiB = int64_t{1} << 20;

/// Two equal tensors of 1 MiB, and a view of another dtype.
std::vector<at::Tensor> block(int64_t number) {
  const at::Tensor wide = at::full({8, 4}, static_cast<double>(number), at::kBFloat16);
  const at::Tensor x = at::arange(kMiB / 4).to(at::kFloat).add_(number);
  return {x, wide.narrow(1, 0, 2), -x};
}

TEST_CASE("activation offload: gives back what was put, in any order, as often as asked") {
  const testing::TemporaryFolder folder;
  for (const auto& [on_disk, ahead] : {std::pair{false, false}, {false, true}, {true, false}}) {
    CAPTURE(on_disk);
    CAPTURE(ahead);
    ActivationOffload store(at::kCPU, on_disk ? folder.path : "", ahead);
    std::vector<std::shared_ptr<SavedTensors>> saved;
    for (int64_t i = 0; i < 5; ++i) saved.push_back(store.put(block(i), /*briefly=*/i == 4));
    const auto check = [&](int64_t i) {
      const auto expected = block(i);
      for (size_t t = 0; t < 3; ++t) CHECK(saved[i]->get(t).equal(expected[t]));
    };
    for (const int64_t i : {4, 2, 2}) check(i);
    saved[2].reset();
    saved[4].reset();
    saved[3]->read_previous_ahead();
    saved[3]->read_previous_ahead();
    check(3);
    check(1);
    check(1);
    saved[0]->read_previous_ahead();  // there is none
    check(0);
    // Freed space is reused without mixing up tensors.
    saved[2] = store.put(block(7));
    saved[4] = store.put(block(8));
    CHECK(saved[2]->get(0).equal(block(7)[0]));
    CHECK(saved[4]->get(1).equal(block(8)[1]));
    for (const int64_t i : {0, 1, 3}) check(i);
    CHECK((store.peak_file_bytes() > 0) == on_disk);
    CHECK(store.peak_file_bytes() <= 6 * (2 * kMiB + 4096));
  }
}

TEST_CASE("activation offload: the device holds a block or two, a file's host two; then nothing") {
  const testing::TemporaryFolder folder;
  for (const bool on_disk : {false, true}) {
    CAPTURE(on_disk);
    const int64_t host_before = host_bytes().live;
    AllocationCounter device(AllocationCounter::Of::kProcess);
    int64_t most_on_host = 0;
    {
      std::vector<std::shared_ptr<SavedTensors>> saved;
      {
        ActivationOffload store(at::kCPU, on_disk ? folder.path : "", /*ahead=*/true);
        for (int64_t i = 0; i < 12; ++i) {
          saved.push_back(store.put({at::ones({kMiB / 4})}));
          most_on_host = std::max(most_on_host, host_bytes().live - host_before);
        }
        CHECK(device.peak_bytes() < 3 * kMiB);
      }  // entries outlive the store
      device.restart_peak();
      while (!saved.empty()) {
        const at::Tensor now = saved.back()->get(0);
        saved.back()->read_previous_ahead();
        saved.pop_back();
        most_on_host = std::max(most_on_host, host_bytes().live - host_before);
      }
      CHECK(device.peak_bytes() < 4 * kMiB);
    }
    CHECK(device.live_bytes() < kMiB / 16);
    CHECK(host_bytes().live == host_before);
    if (on_disk) {
      CHECK(most_on_host <= 4 * kMiB);
    } else {
      CHECK(most_on_host == 12 * kMiB);
    }
    // An entry dropped early, as after an error, leaves nothing either.
    {
      ActivationOffload store(at::kCPU, on_disk ? folder.path : "");
      const auto first = store.put({at::ones({kMiB / 4})}), last = store.put({at::ones({kMiB})});
      last->read_previous_ahead();
    }
    CHECK(device.live_bytes() < kMiB / 16);
    CHECK(host_bytes().live == host_before);
  }
  CHECK(fs::is_empty(folder.path));
}

TEST_CASE("activation offload: what was put before is on its way when it is asked for") {
  const testing::TemporaryFolder folder;
  for (const bool on_disk : {false, true}) {
    CAPTURE(on_disk);
    ActivationOffload store(at::kCPU, on_disk ? folder.path : "", /*ahead=*/true);
    const AllocationCounter device(AllocationCounter::Of::kProcess);
    const auto below = store.put({at::ones({2 * kMiB / 4})}),
               block = store.put({at::ones({kMiB / 4})});
    // Everything has left the device when the last block is back.
    CHECK(block->get(0).size(0) == kMiB / 4);
    const auto bytes = [&] { return on_disk ? host_bytes().live : device.live_bytes(); };
    const int64_t before = bytes();
    for (int time = 0; time < 2; ++time) {  // once is enough
      block->read_previous_ahead();
      CHECK(bytes() - before == 2 * kMiB);
    }
    CHECK(below->get(0).sum().item<float>() == 2 * kMiB / 4);
  }
}

TEST_CASE("activation offload: the file has no name while it is used") {
  const testing::TemporaryFolder folder;
  ActivationOffload store(at::kCPU, folder / "deep/er");
  const auto saved = store.put({at::ones({kMiB})});
  CHECK(saved->get(0).sum().item<float>() == kMiB);
  CHECK(fs::is_empty(folder / "deep/er"));
}

TEST_CASE("activation offload: a folder that takes no file is named, with what to do") {
  const testing::TemporaryFolder folder;
  folder.write("file", "x");
  const std::string not_a_folder = folder / "file/here";
  CHECK_THROWS_WITH_AS(ActivationOffload(at::kCPU, not_a_folder),
                       doctest::Contains("offload_folder"), UserError);
  CHECK_THROWS_WITH_AS(ActivationOffload(at::kCPU, "/proc/longspan"),
                       doctest::Contains("/proc/longspan"), UserError);
}

TEST_CASE("activation offload: a full disk is an error where the next block is put or read") {
  const testing::TemporaryFolder folder;
  ActivationOffload store(at::kCPU, folder.path);
  // RLIMIT_FSIZE simulates a full disk.
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  const auto inherited = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{static_cast<rlim_t>(2 * kMiB), before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);
  std::vector<std::shared_ptr<SavedTensors>> saved;
  const auto put_many = [&] {
    for (int i = 0; i < 6; ++i) saved.push_back(store.put({at::ones({kMiB / 4})}));
  };
  CHECK_THROWS_WITH_AS(put_many(), doctest::Contains("takes no more activations"), UserError);
  REQUIRE(saved.size() >= 3);
  CHECK(saved[0]->get(0).sum().item<float>() == kMiB / 4);
  CHECK_THROWS_AS(saved[2]->get(0), UserError);
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, inherited);
}

TEST_CASE("spill file: places of rows of many lengths do not add up") {
  const testing::TemporaryFolder folder;
  SpillFile file(folder.path);
  const int64_t first = file.reserve(100), second = file.reserve(5000), third = file.reserve(100);
  CHECK(first != third);
  CHECK(second % 4096 == 0);
  file.release(third, 100);
  CHECK(file.reserve(90) == third);
  file.release(first, 100);
  file.release(second, 5000);
  file.release(third, 90);
  CHECK(file.reserve(100'000) == 0);
}

}  // namespace
}  // namespace longspan
