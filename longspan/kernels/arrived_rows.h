// The order of rows that arrive from other processes for the experts here. P: processes, N: experts
// here, S: arriving rows, sorted by process, then by expert.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace longspan {

/// int64, on the device of the rows.
struct ArrivedRows {
  at::Tensor order_S;   // arriving rows, sorted by expert, then by process
  at::Tensor places_S;  // the inverse of order_S
};

/// arrived_PN: P N counts, int64, by process, then by expert; their sum is num_rows.
ArrivedRows order_arrived(const std::vector<int64_t>& arrived_PN, int64_t num_experts);
/// The same for counts on a GPU, by a kernel; nullopt where there is none.
std::optional<ArrivedRows> order_arrived_on_gpu(const at::Tensor& arrived_PN, int64_t num_experts,
                                                int64_t num_rows);

}  // namespace longspan
