#include "longspan/memory/host_memory.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include "longspan/base/user_error.h"
#include "longspan/memory/counting_allocator.h"
#include "longspan/memory/out_of_memory.h"

namespace longspan {
namespace {

TEST_CASE("host memory: holds numbers and is not counted as the device's") {
  AllocationCounter device(AllocationCounter::Of::kProcess);
  const int64_t before = host_bytes().live;
  for (const int64_t rows : {3, 100'000}) {  // from the heap, from the system
    CAPTURE(rows);
    const int64_t num_bytes = rows * 5 * 4;
    at::Tensor view;
    {
      const at::Tensor x = empty_on_host({rows, 5}, at::kFloat, at::kCPU);
      x.fill_(2.5);
      CHECK(x.sum().item<double>() == doctest::Approx(2.5 * 5 * static_cast<double>(rows)));
      CHECK(x.is_contiguous());
      CHECK(reinterpret_cast<uintptr_t>(x.data_ptr()) % 64 == 0);
      CHECK(host_bytes().live - before == num_bytes);
      CHECK(host_bytes().peak >= num_bytes);
      view = x.narrow(0, 1, 1);
    }
    CHECK(view.sum().item<float>() == 12.5f);
    CHECK(host_bytes().live - before == num_bytes);  // a view keeps it
    view.reset();
    CHECK(host_bytes().live == before);
    CHECK(device.peak_bytes() < 64);  // the results of the sums
  }
  const at::Tensor like = empty_on_host_like(at::zeros({7, 2}, at::kBFloat16));
  CHECK(like.sizes().vec() == std::vector<int64_t>{7, 2});
  CHECK((like.scalar_type() == at::kBFloat16));
  CHECK(empty_on_host({0, 4}, at::kFloat, at::kCPU).numel() == 0);
}

TEST_CASE("host memory: more than there is is a mistake that can be mended") {
  const auto too_much = [] { empty_on_host({int64_t{1} << 50}, at::kFloat, at::kCPU); };
  CHECK_THROWS_WITH_AS(too_much(), doctest::Contains("The host has no room for"), UserError);
}

TEST_CASE("host memory: only what says so is lack of memory") {
  CHECK(is_out_of_memory(std::bad_alloc()));
  CHECK(is_out_of_memory(c10::OutOfMemoryError({__func__, __FILE__, __LINE__}, "tried 4 GiB")));
  CHECK(is_out_of_memory(c10::Error({__func__, __FILE__, __LINE__}, "CUDA error: out of memory")));
  for (const char* status : {"CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED",
                             "CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"}) {
    CHECK(is_out_of_memory(c10::Error({__func__, __FILE__, __LINE__}, status)));
  }
  CHECK_FALSE(
      is_out_of_memory(c10::Error({__func__, __FILE__, __LINE__}, "CUDA error: no device")));
  CHECK_FALSE(is_out_of_memory(std::runtime_error("not enough memory of the last talk")));
  try {
    // Pinned memory without a GPU fails with the error of the missing GPU.
    empty_on_host({4}, at::kFloat, at::kCUDA);
  } catch (const UserError& error) {
    FAIL(std::string(error.what()));
  } catch (const c10::Error&) {
  }
}

}  // namespace
}  // namespace longspan
