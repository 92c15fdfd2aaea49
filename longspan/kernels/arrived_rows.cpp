#include "longspan/kernels/arrived_rows.h"

#include <ATen/ATen.h>

#include <numeric>

#include "longspan/cuda/rows/arguments.h"
#include "longspan/kernels/cuda_launch.h"

namespace longspan {

ArrivedRows order_arrived(const std::vector<int64_t>& arrived_PN, int64_t num_experts) {
  const int64_t num_parts = std::ssize(arrived_PN);
  std::vector<int64_t> begins(arrived_PN.size());
  std::exclusive_scan(arrived_PN.begin(), arrived_PN.end(), begins.begin(), int64_t{0});
  const int64_t S = std::accumulate(arrived_PN.begin(), arrived_PN.end(), int64_t{0});
  ArrivedRows rows{at::empty({S}, at::kLong), at::empty({S}, at::kLong)};
  auto *const order = rows.order_S.mutable_data_ptr<int64_t>(),
              *const places = rows.places_S.mutable_data_ptr<int64_t>();
  int64_t place = 0;
  for (int64_t expert = 0; expert < num_experts; ++expert) {
    for (int64_t part = expert; part < num_parts; part += num_experts) {
      for (int64_t row = begins[part]; row < begins[part] + arrived_PN[part]; ++row) {
        order[place] = row;
        places[row] = place++;
      }
    }
  }
  return rows;
}

std::optional<ArrivedRows> order_arrived_on_gpu(const at::Tensor& arrived_PN, int64_t num_experts,
                                                int64_t num_rows) {
  cuda::Kernels* const kernels = cuda_rows::kernels_of(arrived_PN, cuda::Part::kGroupedRows);
  if (kernels == nullptr) return std::nullopt;
  TORCH_CHECK(arrived_PN.scalar_type() == at::kLong && arrived_PN.is_contiguous(),
              "counts of rows are int64");
  const at::TensorOptions options = arrived_PN.options();
  const ArrivedRows rows{at::empty({num_rows}, options), at::empty({num_rows}, options)};
  const auto numbers = [](const at::Tensor& x) {
    return reinterpret_cast<long long*>(x.mutable_data_ptr<int64_t>());
  };
  kernels->launch("order_arrived",
                  cuda::Launch{.blocks_x = static_cast<unsigned>(arrived_PN.numel()),
                               .threads_x = cuda::kBlockThreads},
                  cuda::ArrivedRows{.arrived = reinterpret_cast<const long long*>(
                                        arrived_PN.const_data_ptr<int64_t>()),
                                    .order = numbers(rows.order_S),
                                    .places = numbers(rows.places_S),
                                    .num_ranks = static_cast<int>(arrived_PN.numel() / num_experts),
                                    .num_experts = static_cast<int>(num_experts)});
  return rows;
}

}  // namespace longspan
