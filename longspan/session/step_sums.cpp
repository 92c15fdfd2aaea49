#include "longspan/session/step_sums.h"

#include <ATen/ops/tensor.h>

#include "longspan/memory/transfer.h"
#include "longspan/session/session.h"
#include "longspan/stages/objective.h"

namespace longspan {

std::function<BatchCounts()> start_counts(std::span<const Row> rows, const Objective& objective,
                                          const Mesh& mesh) {
  std::vector<double> counts(4, 0.0);
  for (const Row& row : rows) {
    // The sum is over the ranks at one place of their sequence groups.
    if (row.sharers().rank() != mesh.sequence.rank()) continue;
    counts[0] += objective.weight(row);
    counts[1] += static_cast<double>(row.num_tokens());
    counts[2] += static_cast<double>(row.examples.size());
    counts[3] += static_cast<double>(row.num_computed_tokens());
  }
  Pending summing = mesh.data_hosts.sum_async_(at::tensor(counts, at::kDouble));
  return [summing]() mutable {
    const at::Tensor sums = summing.wait();
    const double* const data = sums.const_data_ptr<double>();
    return BatchCounts{.weight = data[0],
                       .num_tokens = static_cast<int64_t>(data[1]),
                       .num_samples = static_cast<int64_t>(data[2]),
                       .num_computed_tokens = static_cast<int64_t>(data[3])};
  };
}

at::Tensor step_sums(const RowLosses& losses, const at::Tensor& of_experts,
                     const std::vector<double>& flags, at::Device device) {
  std::vector<double> values{0.0};
  values.insert(values.end(), flags.begin(), flags.end());
  const at::Tensor sums = sent_to(at::tensor(values, at::dtype(at::kDouble)), device);
  const at::Tensor loss = sums.select(0, 0);
  if (of_experts.defined()) loss.add_(of_experts);
  for (size_t i = 0; i < losses.contributions.size(); ++i) {
    if (losses.counted[i]) loss.add_(losses.contributions[i].reshape({}).to(at::kDouble));
  }
  return sums;
}

}  // namespace longspan
