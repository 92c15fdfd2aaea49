// Calls of c10d backends whose names differ between versions of torch, and views of their tensors.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <vector>

namespace c10d {
class Backend;
class Work;
}  // namespace c10d

namespace longspan {

using WorkOfBackend = c10::intrusive_ptr<c10d::Work>;

WorkOfBackend start_all_to_all(c10d::Backend& backend, at::Tensor& output, at::Tensor& input,
                               std::vector<int64_t>& output_rows, std::vector<int64_t>& input_rows);
WorkOfBackend start_all_gather(c10d::Backend& backend, at::Tensor& output, at::Tensor& input);
WorkOfBackend start_reduce_scatter(c10d::Backend& backend, at::Tensor& output, at::Tensor& input);

/// Waits until a backend that releases tensors late (LinkTraits::lets_go_late) has released a
/// collective's tensors, so that memory use is as the caller expects. On a busy machine the release
/// may come after the next allocation. Giving up changes no result.
void await_letting_go(const WorkOfBackend& work);

/// Views data of any dtype as [rows, bytes of a row]. Gloo supports few dtypes, and moving data
/// needs none.
at::Tensor as_byte_rows(const at::Tensor& contiguous, int64_t row_bytes);
at::Tensor as_bytes(const at::Tensor& contiguous);

/// Returns the dtype of sums over ranks: fp32 for shorter floating-point numbers.
at::ScalarType dtype_of_sums(at::ScalarType dtype);

}  // namespace longspan
