// The emulation of asynchronous copies (cuda_threads.h) shows the mistakes that a GPU may hide.
#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <stdexcept>

#include "longspan/testing/copy_case.h"
#include "longspan/testing/emulated_kernels.h"

namespace longspan::testing {
namespace {

constexpr int64_t kThreads = 64, kMissing = 5;

/// Returns the numbers that each thread has got.
at::Tensor copied(CopyFault fault) {
  const at::Tensor from = at::arange(4 * kThreads, at::kFloat), to = at::empty({kThreads});
  EmulatedKernels emulated;
  cuda::Kernels& kernels = emulated;
  kernels.launch("copy_vectors", {.threads_x = kThreads, .shared_bytes = 8192},
                 CopyCase{.from = from.const_data_ptr(),
                          .to = to.mutable_data_ptr<float>(),
                          .missing = kMissing,
                          .fault = fault});
  return to;
}

TEST_CASE("cuda emulation: copies arrive at a wait, and for others at the barrier behind it") {
  at::Tensor expected = at::arange(kThreads, at::kFloat).add_(1).remainder_(kThreads).mul_(4);
  expected[kMissing - 1] = 0;
  CHECK(at::equal(copied(CopyFault::kNone), expected));
  CHECK(copied(CopyFault::kNoWait).isnan().all().item<bool>());
  CHECK(copied(CopyFault::kNewestGroup).isnan().all().item<bool>());
  // Without the barrier, the first warp does not see the second warp's copies, nor its own lanes'.
  // Lanes take turns by the place of their block, whatever has run before.
  for (int i = 0; i < 2; ++i) {
    const at::Tensor missed = copied(CopyFault::kNoBarrier).isnan();
    CHECK(missed.sum().item<int64_t>() == kThreads - 1);
    CHECK(!missed[kThreads - 1].item<bool>());
  }
}

TEST_CASE("cuda emulation: lanes that use one bank at the same time are a fault") {
  CHECK_THROWS_WITH_AS(copied(CopyFault::kOneBank), doctest::Contains("same bank"),
                       std::runtime_error);
}

}  // namespace
}  // namespace longspan::testing
