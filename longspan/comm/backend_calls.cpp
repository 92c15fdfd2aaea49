#include "longspan/comm/backend_calls.h"

#include <ATen/ATen.h>

#include <chrono>
#include <thread>
#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace longspan {
namespace {

// torch renamed these three before 2.15. Both names are supported.
template <typename Backend>
auto all_to_all_of(Backend& backend, at::Tensor& output, at::Tensor& input,
                   std::vector<int64_t>& output_rows, std::vector<int64_t>& input_rows) {
  if constexpr (requires { backend.all_to_all_single(output, input, output_rows, input_rows); }) {
    return backend.all_to_all_single(output, input, output_rows, input_rows);
  } else {
    return backend.alltoall_base(output, input, output_rows, input_rows);
  }
}

template <typename Backend>
auto all_gather_of(Backend& backend, at::Tensor& output, at::Tensor& input) {
  if constexpr (requires { backend.all_gather_single(output, input); }) {
    return backend.all_gather_single(output, input);
  } else {
    return backend._allgather_base(output, input);
  }
}

template <typename Backend>
auto reduce_scatter_of(Backend& backend, at::Tensor& output, at::Tensor& input) {
  if constexpr (requires { backend.reduce_scatter_single(output, input); }) {
    return backend.reduce_scatter_single(output, input);
  } else {
    return backend._reduce_scatter_base(output, input);
  }
}

}  // namespace

WorkOfBackend start_all_to_all(c10d::Backend& backend, at::Tensor& output, at::Tensor& input,
                               std::vector<int64_t>& output_rows,
                               std::vector<int64_t>& input_rows) {
  return all_to_all_of(backend, output, input, output_rows, input_rows);
}

WorkOfBackend start_all_gather(c10d::Backend& backend, at::Tensor& output, at::Tensor& input) {
  return all_gather_of(backend, output, input);
}

WorkOfBackend start_reduce_scatter(c10d::Backend& backend, at::Tensor& output, at::Tensor& input) {
  return reduce_scatter_of(backend, output, input);
}

void await_letting_go(const WorkOfBackend& work) {
  constexpr std::chrono::milliseconds kPatience{20};
  constexpr std::chrono::microseconds kNap{20};
  const auto end = std::chrono::steady_clock::now() + kPatience;
  while (work.use_count() > 1 && std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(kNap);
  }
}

at::Tensor as_byte_rows(const at::Tensor& contiguous, int64_t row_bytes) {
  return contiguous.view({-1}).view(at::kByte).view(
      {static_cast<int64_t>(contiguous.nbytes()) / row_bytes, row_bytes});
}

at::Tensor as_bytes(const at::Tensor& contiguous) { return contiguous.view({-1}).view(at::kByte); }

at::ScalarType dtype_of_sums(at::ScalarType dtype) {
  return dtype == at::kBFloat16 || dtype == at::kHalf ? at::kFloat : dtype;
}

}  // namespace longspan
