// LoongTrain (arXiv 2406.18485, section 4.2): Ulysses around a double ring in zigzag order. Keys
// and values travel around an inner ring: a window of W neighbours. During this pass, the keys and
// values of the whole window hop to the next of D windows on the outer ring. Ring rank = rank in
// windows * W + rank in window.
//
// Bytes: the same as for one ring of R = D W ranks (ring_attention.h). The outer ring has D - 1
// hops, and the inner rings have D (W - 1) hops.
#include <algorithm>

#include "longspan/plan/attention_memory.h"
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

/// Within a window as in one ring. In addition the window's keys stay, the next window's are in
/// transit, and so are the gradients of the previous window.
AttentionMemory memory(const ParallelPlan& plan, const AttentionShape& shape,
                       const Packing& padded) {
  AttentionMemory memory = memory_of_degrees(plan, shape, padded);
  const int D = plan.ring_size / plan.window_size;
  if (D == 1 || plan.window_size == 1 || shape.spec.window) return memory;
  const RowBytes bytes(shape);
  const double kv_heads =
      std::max(1.0, static_cast<double>(shape.spec.num_kv_heads) / plan.ulysses_size);
  const double of_token = passes_latents(shape.spec, plan.ulysses_size, plan.head_waves)
                              ? bytes.latents
                              : kv_heads * bytes.kv;
  const double of_keys = static_cast<double>(padded.num_tokens() / plan.ring_size) * of_token;
  const double arrived = of_keys * std::min(D - 1, 2);
  memory.forward += arrived;
  memory.backward += arrived + of_keys * bytes.widening * (D > 2 ? 3 : 1);
  return memory;
}

std::unique_ptr<SequenceParallel> make(const ParallelPlan& plan, const Mesh& mesh,
                                       const BlockKernel& kernel) {
  if (plan.ring_size == 1) return ulysses_around(make_local(kernel), plan, mesh);
  return ulysses_around(
      make_zigzag_ring(Rings({mesh.windows, mesh.window}), mesh.ring, "double ring", kernel), plan,
      mesh);
}

constexpr const MethodKey* kKeysOfLoongTrain[] = {&kUlyssesDegree, &kRingDegree, &kWindowSize,
                                                  &kHeadWaves};

}  // namespace

extern const Method kLoongTrain{
    .name = "loongtrain",
    .keys = kKeysOfLoongTrain,
    .head_waves = {.own = 1, .cuts_heads = false, .most = whole_heads_of_rank},
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
    .memory = memory,
    .make = make,
};

}  // namespace longspan
