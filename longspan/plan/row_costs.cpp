#include "longspan/plan/row_costs.h"

#include <utility>

namespace longspan {
namespace {

/// Calls of kernels outside of attention, for a layer's forward and backward. Assumed.
constexpr double kCallsOfLayer = 60;

}  // namespace

RowCosts::RowCosts(std::map<int, ParallelPlan> plans, RowWork work, const ClusterModel& cluster)
    : plans_(std::move(plans)), work_(std::move(work)), cluster_(cluster) {}

double RowCosts::seconds(int64_t length, int degree) const {
  const auto [known, is_new] = known_.try_emplace({length, degree}, 0.0);
  if (is_new) known->second = estimated(length, degree);
  return known->second;
}

double RowCosts::estimated(int64_t length, int degree) const {
  if (length == 0) return 0;
  const Packing row = Packing::single(length);
  double seconds = 0;
  for (const auto& [spec, count] : work_.layers) {
    const AttentionShape shape(spec, work_.element_bytes);
    seconds += static_cast<double>(count) *
               (attention_seconds(plans_.at(degree), shape, row, work_.checkpointing, cluster_) +
                kCallsOfLayer * cluster_.call_seconds);
  }
  // A gemm has two FLOP for each parameter and token, and twice as many in the backward.
  const double forward = 2 * work_.parameters_per_token * static_cast<double>(length) / degree;
  return seconds + (work_.checkpointing ? 2 : 1) * forward / cluster_.forward_flops +
         2 * forward / cluster_.backward_flops;
}

}  // namespace longspan
