// P: ranks of a sequence group, R: ring degree, U: Ulysses degree.
#include "longspan/plan/method_parts.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "longspan/plan/plan_checks.h"
#include "longspan/plan/ring_parts.h"
#include "longspan/rows/padding.h"
#include "longspan/rows/share_of.h"
#include "longspan/text/counted.h"

namespace longspan {

std::string fits_any_heads(int /*num_ranks*/, const AttentionShape& /*heads*/) { return ""; }

std::string fits_whole_heads(int num_ranks, const AttentionShape& heads) {
  if (heads.spec.num_heads % num_ranks == 0) return "";
  return fmt::format(
      "cannot split {} ({}) over {}: sequence_parallel_size must divide the number of attention "
      "heads",
      counted(heads.spec.num_heads, "attention head"),
      counted(heads.spec.num_kv_heads, "key-value head"), counted(num_ranks, "rank"));
}

bool serves_any_heads(const Method& method) { return &method.refusal == &fits_any_heads; }

std::vector<int> all_exchange_heads(const PlanRequest& request, const Method& /*self*/) {
  return {request.sequence_size};
}
std::vector<int> none_exchange_heads(const PlanRequest& /*request*/, const Method& /*self*/) {
  return {1};
}
std::vector<int> dividing_degrees(const PlanRequest& request, const Method& self) {
  check_degrees(request, self);
  const int P = request.sequence_size;
  if (request.ulysses_degree) return {*request.ulysses_degree};
  if (request.ring_degree) return {P / *request.ring_degree};
  std::vector<int> degrees;
  for (int degree = 1; degree <= P; ++degree) {
    if (P % degree == 0 && request.num_heads % degree == 0) degrees.push_back(degree);
  }
  return degrees;
}
std::vector<int> not_by_auto(const PlanRequest& /*request*/, const Method& /*self*/) { return {}; }

void nothing_more(const PlanRequest& /*request*/, ParallelPlan& /*plan*/) {}

int64_t most_one_wave(int64_t /*num_heads*/, const ParallelPlan& /*plan*/) { return 1; }

int64_t whole_heads_of_rank(int64_t num_heads, const ParallelPlan& plan) {
  return num_heads / plan.ulysses_size;
}

Packing padded_at_tail(const ParallelPlan& plan, const Packing& row) {
  return pad_tail(row, int64_t{plan.ring_size} * plan.ulysses_size);
}

Packing padded_for_zigzag(const ParallelPlan& plan, const Packing& row) {
  const int64_t R = plan.ring_size, U = plan.ulysses_size;
  if (R == 1) return padded_at_tail(plan, row);
  // Shares of zigzag order are even, and Ulysses cuts each into U.
  return pad_tail(pad_documents(row, 2 * R), R * std::lcm(int64_t{2}, U));
}

TokenOrder consecutive_shares(const ParallelPlan& plan, const Packing& row, int64_t multiple,
                              int rank) {
  return consecutive_order(row, multiple, rank, plan.sequence_size);
}

RankGeometry geometry_of_whole_heads(const ParallelPlan& plan, const AttentionShape& shape,
                                     const Packing& padded, int rank) {
  const int P = plan.sequence_size;
  const HeadSplit split = split_evenly(P, shape.spec.num_heads, shape.spec.num_kv_heads,
                                       padded.num_tokens(), plan.head_waves);
  return geometry_of_share(split[rank], P, padded, shape);
}

RankGeometry geometry_with_latents(const ParallelPlan& plan, const AttentionShape& shape,
                                   const Packing& padded, int rank) {
  RankGeometry geometry = geometry_of_whole_heads(plan, shape, padded, rank);
  if (!passes_latents(shape.spec, plan.sequence_size, plan.head_waves)) return geometry;
  for (AttentionStep& step : geometry.steps) {
    step.keys.clear();
    step.latents.push_back({0, plan.sequence_size, 0, padded.num_tokens()});
  }
  return geometry;
}

double keys_at_hand(const PassCost& /*cost*/, double /*bytes*/, const std::vector<double>& work) {
  return work[0];
}

namespace {

/// In a sliding window: the visible keys of each rank come directly from it, in the steps that
/// attend anything. In the backward, the gradients of the last ones return after all work.
double keys_from_owners(const PassCost& cost, double bytes, const std::vector<double>& work) {
  double seconds = 0;
  int num_fetches = 0;
  for (size_t step = 0; step < work.size(); ++step) {
    seconds += work[step];
    if (step > 0 && work[step] > 0) ++num_fetches;
  }
  if (num_fetches == 0 || bytes == 0) return seconds;
  const PassCost::Sending fetch =
      cost.to_next(bytes / num_fetches, cost.crossings(cost.plan.ring_size, 1));
  double last_work = work[0];
  for (size_t step = 1; step < work.size(); ++step) {
    if (work[step] == 0) continue;
    seconds += PassCost::exposed(fetch, last_work);
    last_work = work[step];
  }
  return seconds + (cost.backward ? 0.5 * (fetch.seconds - fetch.copying) : 0.0);
}

/// One ring. `parts`: of a hop (ring_parts.h). A hop overlaps with the work before it, and with the
/// next step's work on all parts but the last. In the backward the first hop has keys only and no
/// work before it; the last hop has gradients only, and overlaps with the work on the own keys.
double keys_round_ring(const PassCost& cost, double hop_bytes, const std::vector<double>& work,
                       int64_t parts) {
  const int crossings = cost.crossings(cost.plan.ring_size, 1);
  const auto n = static_cast<double>(parts);
  const auto exposed = [&](double share, double before, double after) {
    const PassCost::Sending hop = cost.to_next(hop_bytes * share, crossings);
    const double sending = hop.seconds - hop.copying;
    return hop.copying +
           std::max({0.0, sending / n - before, sending - before - after * (n - 1) / n});
  };
  const size_t last = work.size() - 1;
  double seconds = std::accumulate(work.begin(), work.end(), 0.0);
  if (cost.backward) {
    const double gradients =
        static_cast<double>(cost.shape.gradient_bytes) /
        static_cast<double>(cost.shape.gradient_bytes + cost.shape.element_bytes);
    seconds += exposed(1.0 - gradients, 0.0, work[1]) + exposed(gradients, work[0], work[last]);
  } else {
    seconds += exposed(1.0, work[0], work[1]);
  }
  for (size_t step = 1; step < last; ++step) seconds += exposed(1.0, work[step], work[step + 1]);
  return seconds;
}

}  // namespace

double keys_round_rings(const PassCost& cost, double bytes, const std::vector<double>& work) {
  const int R = cost.plan.ring_size, W = cost.plan.window_size;
  if (R == 1) return work[0];
  if (cost.shape.spec.window) return keys_from_owners(cost, bytes, work);
  const double hop_bytes = bytes / (R - 1);
  if (W == 1) {
    const bool latents =
        passes_latents(cost.shape.spec, cost.plan.ulysses_size, cost.plan.head_waves);
    const int64_t kv_heads = cost.shape.spec.num_kv_heads / cost.plan.ulysses_size;
    const bool cuda = !cost.cluster.copies_cost_work;
    return keys_round_ring(cost, hop_bytes, work, latents ? 1 : num_ring_parts(kv_heads, cuda));
  }
  const PassCost::Sending hop = cost.to_next(hop_bytes, cost.crossings(W, 1));
  const PassCost::Sending outer_hop = cost.to_next(hop_bytes, W < R ? cost.crossings(R / W, W) : 0);
  double seconds = std::accumulate(work.begin(), work.end(), 0.0);
  for (int step = 0; step < R; ++step) {
    if (step % W + 1 < W) seconds += PassCost::exposed(hop, work[step]);
  }
  for (int pass = 0; pass + 1 < R / W; ++pass) {
    seconds += PassCost::exposed(outer_hop, W * work.back());
  }
  // The gradients of the last step return to their ranks after all work; their copies are included.
  if (cost.backward) {
    const double share = static_cast<double>(cost.shape.gradient_bytes) /
                         static_cast<double>(cost.shape.gradient_bytes + cost.shape.element_bytes);
    const PassCost::Sending last = cost.to_next(hop_bytes * share, cost.crossings(W, 1));
    seconds += last.seconds - last.copying;
  }
  return seconds;
}

double nothing_exchanged(const PassCost& /*cost*/, double /*bytes*/, double context_seconds) {
  return context_seconds;
}

double exchanged_in_waves(const PassCost& cost, double bytes, double context_seconds) {
  if (cost.plan.ulysses_size == 1) return context_seconds;
  const PassCost::Sending exchange = cost.to_all(bytes, cost.plan.ulysses_size);
  const double W = cost.plan.head_waves;
  return context_seconds + exchange.seconds / W +
         PassCost::exposed(exchange, context_seconds) * (W - 1) / W;
}

}  // namespace longspan
