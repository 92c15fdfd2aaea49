#include "longspan/plan/row_costs.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace longspan {
namespace {

/// Rounds up to five significant bits, so that few estimates are made: an estimate costs a walk
/// through the method's geometry.
int64_t rounded_up(int64_t length) {
  const int bits = static_cast<int>(std::bit_width(static_cast<uint64_t>(length)));
  const int64_t step = int64_t{1} << std::max(0, bits - 5);
  return (length + step - 1) / step * step;
}

}  // namespace

RowCosts::RowCosts(std::map<int, ParallelPlan> plans, RowWork work, const ClusterModel& cluster)
    : plans_(std::move(plans)), work_(std::move(work)), cluster_(cluster) {}

double RowCosts::seconds(int64_t length, int degree) const {
  if (length == 0) return 0;
  const int64_t rounded = rounded_up(length);
  const auto [known, is_new] = known_.try_emplace({rounded, degree}, 0.0);
  if (is_new) known->second = estimated(rounded, degree);
  return known->second * static_cast<double>(length) / static_cast<double>(rounded);
}

double RowCosts::estimated(int64_t length, int degree) const {
  const Packing row = Packing::single(length);
  double seconds = 0;
  for (const auto& [spec, count] : work_.layers) {
    const AttentionShape shape(spec, work_.element_bytes);
    seconds += static_cast<double>(count) *
               attention_seconds(plans_.at(degree), shape, row, work_.checkpointing, cluster_);
  }
  // A gemm has two FLOP for each parameter and token, and twice as many in the backward.
  const double forward = 2 * work_.parameters_per_token * static_cast<double>(length) / degree;
  return seconds + (work_.checkpointing ? 2 : 1) * forward / cluster_.forward_flops +
         2 * forward / cluster_.backward_flops;
}

}  // namespace longspan
