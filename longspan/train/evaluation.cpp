#include "longspan/train/evaluation.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <chrono>

#include "longspan/data/loader.h"
#include "longspan/train/row.h"

namespace longspan {

EvaluationResult evaluate(Decoder& model, const SequenceParallel& attention, const Mesh& mesh,
                          const std::vector<Sample>& samples, int64_t rows_per_batch,
                          at::Device device) {
  const at::NoGradGuard no_grad;
  const auto start = std::chrono::steady_clock::now();
  const Loader loader(static_cast<int64_t>(samples.size()), rows_per_batch, mesh.data.rank(),
                      mesh.data.size(), /*shuffle=*/false, /*seed=*/0);
  double loss_sum = 0.0, num_labels = 0.0;
  for (int64_t i = 0; i < loader.num_batches(); ++i) {
    const std::vector<int64_t> rows = loader.rows(/*epoch=*/0, i);
    if (rows.empty()) continue;
    const Batch row = collate_rows(samples, rows);
    const Batch local = local_share(row, attention, device);
    loss_sum += model.negative_log_likelihood_sum(local).item<double>();
    // Every member of a sequence group holds the whole row: its labels count once.
    if (mesh.sequence.rank() == 0) num_labels += static_cast<double>(count_labels(row));
  }
  at::Tensor sums = at::zeros({2}, at::kDouble);
  sums[0].fill_(loss_sum);
  sums[1].fill_(num_labels);
  sums = sums.to(device);
  mesh.world.sum_(sums);
  EvaluationResult result;
  result.loss = sums[0].item<double>() / std::max(1.0, sums[1].item<double>());
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  result.num_samples = static_cast<int64_t>(samples.size());
  result.num_batches = loader.num_batches();
  return result;
}

}  // namespace longspan
