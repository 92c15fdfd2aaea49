// LoongTrain (arXiv 2406.18485, section 4.2): Ulysses around a double ring in zigzag order. Keys go
// round a window of W neighbours, and meanwhile those of the whole window hop to the next of D
// windows. Ring rank = rank in windows * W + rank in window.
//
// Bytes: those of one ring of R = D W ranks (ring_attention.h), of which the outer ring carries
// D - 1 hops and the inner rings D (W - 1).
#include "longspan/plan/exchange_volume.h"
#include "longspan/plan/method_parts.h"
#include "longspan/plan/plan_checks.h"
#include "longspan/sequence_parallel/ring_attention.h"
#include "longspan/sequence_parallel/zigzag_order.h"

namespace longspan {

namespace {

void set_window(const PlanRequest& request, ParallelPlan& plan) {
  plan.window_size = window_of(request, plan.ring_size, plan.ulysses_size);
}

std::unique_ptr<SequenceParallel> make(const ParallelPlan& plan, const Mesh& mesh,
                                       const BlockKernel& kernel) {
  if (plan.ring_size == 1) return ulysses_around(make_local(kernel), plan, mesh);
  return ulysses_around(
      make_zigzag_ring(Rings({mesh.windows, mesh.window}), mesh.ring, "double ring", kernel), plan,
      mesh);
}

}  // namespace

extern const Method kLoongTrain{
    .name = "loongtrain",
    .has_degrees = true,
    .has_windows = true,
    .head_waves = HeadWaves{.own = 1, .cuts_heads = false, .most = whole_heads_of_rank},
    .refusal = fits_any_heads,
    .ulysses_degrees = dividing_degrees,
    .auto_degrees = not_by_auto,
    .complete = set_window,
    .padded_row = padded_for_zigzag,
    .token_order = zigzag_shares,
    .geometry = zigzag_geometry,
    .context_seconds = keys_round_rings,
    .exchange_seconds = exchanged_in_waves,
    .volume = volume_of_degrees,
    .make = make,
};

}  // namespace longspan
