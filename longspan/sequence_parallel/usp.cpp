// USP (arXiv 2405.07719): Ulysses around a ring in zigzag order. With a degree of 1, the ring or
// Ulysses is omitted.
#include "longspan/plan/attention_memory.h"
#include "longspan/plan/exchange_volume.h"
#include "longspan/plan/method_parts.h"
#include "longspan/sequence_parallel/ring_attention.h"
#include "longspan/sequence_parallel/zigzag_order.h"

namespace longspan {
namespace {

/// Returns the Ulysses degrees for which both degrees are above 1, because with a degree of 1 USP
/// equals another method; or the degree in the request.
std::vector<int> auto_degrees(const PlanRequest& request, const Method& self) {
  std::vector<int> degrees = dividing_degrees(request, self);
  if (request.ulysses_degree || request.ring_degree) return degrees;
  std::erase_if(degrees,
                [&](int degree) { return degree == 1 || degree == request.sequence_size; });
  return degrees;
}

std::unique_ptr<SequenceParallel> make(const ParallelPlan& plan, const Mesh& mesh,
                                       const BlockKernel& kernel) {
  if (plan.ring_size == 1) return ulysses_around(make_local(kernel), plan, mesh);
  return ulysses_around(make_zigzag_ring(Rings({mesh.ring}), mesh.ring, "zigzag ring", kernel),
                        plan, mesh);
}

constexpr const MethodKey* kKeysOfUsp[] = {&kUlyssesDegree, &kRingDegree, &kHeadWaves};

}  // namespace

extern const Method kUsp{
    .name = "usp",
    .keys = kKeysOfUsp,
    .head_waves = {.own = 1, .cuts_heads = false, .most = whole_heads_of_rank},
    .refusal = fits_any_heads,
    .ulysses_degrees = dividing_degrees,
    .auto_degrees = auto_degrees,
    .complete = nothing_more,
    .padded_row = padded_for_zigzag,
    .token_order = zigzag_shares,
    .geometry = zigzag_geometry,
    .context_seconds = keys_round_rings,
    .exchange_seconds = exchanged_in_waves,
    .volume = volume_of_degrees,
    .memory = memory_of_degrees,
    .make = make,
};

}  // namespace longspan
