// Ring attention (arXiv 2310.01889) in zigzag order: every rank has the same work in every step.
// Bytes: ring_attention.h.
#include "longspan/plan/attention_memory.h"
#include "longspan/plan/exchange_volume.h"
#include "longspan/plan/method_parts.h"
#include "longspan/sequence_parallel/ring_attention.h"
#include "longspan/sequence_parallel/zigzag_order.h"

namespace longspan {

namespace {

std::unique_ptr<SequenceParallel> make(const ParallelPlan& /*plan*/, const Mesh& mesh,
                                       const BlockKernel& kernel) {
  return make_zigzag_ring(Rings({mesh.ring}), mesh.ring, "zigzag ring", kernel);
}

}  // namespace

std::unique_ptr<SequenceParallel> make_zigzag_ring(Rings rings, Group ring, const char* name,
                                                   const BlockKernel& kernel) {
  return make_ring_attention(std::move(rings), std::move(ring), zigzag_layout(name), kernel);
}

extern const Method kZigzagRing{
    .name = "zigzag-ring",
    .keys = {},
    .head_waves = kOneWave,
    .refusal = fits_any_heads,
    .ulysses_degrees = none_exchange_heads,
    .auto_degrees = none_exchange_heads,
    .complete = nothing_more,
    .padded_row = padded_for_zigzag,
    .token_order = zigzag_shares,
    .geometry = zigzag_geometry,
    .context_seconds = keys_round_rings,
    .exchange_seconds = nothing_exchanged,
    .volume = volume_of_degrees,
    .memory = memory_of_degrees,
    .make = make,
};

}  // namespace longspan
