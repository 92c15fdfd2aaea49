// Llama 3's context parallelism (arXiv 2407.21783, section 3.3.2) in zigzag order: all-gathers the
// keys and values of a few kv heads at a time. The next all-gather overlaps with the attention of
// the current heads. The reduce-scatter of the gradients overlaps with the work of the next heads.
//
// Bytes sent by all R ranks together, for a padded row of T tokens, M kv heads with keys of K and
// values of V elements, e bytes per element and g per gradient element (4; 8 in fp64): all-gather
// (R - 1) T M (K + V) e in the forward and again in the backward, which has saved only this rank's
// keys; reduce-scatter (R - 1) T M (K + V) g.
//
// In latent attention, latents are gathered once, and each rank expands a few heads at a time for
// the whole row: J elements per token (AttentionSpec::latent_dim) replace M (K + V) in the bytes
// above. The all-gather of latents overlaps with no work.
//
// In a layer with a sliding window, a rank's queries see keys of few other ranks. The rank fetches
// these keys directly from their owners, as a ring in zigzag order does (fetched_attention.h).
#include <algorithm>

#include "longspan/plan/attention_memory.h"
#include "longspan/plan/exchange_volume.h"
#include "longspan/plan/method_parts.h"
#include "longspan/sequence_parallel/gathered_attention.h"
#include "longspan/sequence_parallel/zigzag_order.h"

namespace longspan {
namespace {

/// Each gather brings the keys of some heads of the whole row; a single gather brings all latents.
RankGeometry geometry(const ParallelPlan& plan, const AttentionShape& shape, const Packing& padded,
                      int rank) {
  if (shape.spec.window) return zigzag_geometry(plan, shape, padded, rank);
  const int R = plan.ring_size;
  const int64_t T = padded.num_tokens();
  RankGeometry geometry;
  for (const GatheredHeads& wave :
       gathered_waves(shape.spec.num_heads, shape.spec.num_kv_heads, R)) {
    const HeadTokens keys{wave.kv_begin, wave.num_kv, TokenSpan{0, R, 0, T}};
    const HeadTokens queries{wave.query_begin, wave.num_queries, TokenSpan{rank, 1, 0, T / R}};
    AttentionStep& step = geometry.steps.emplace_back();
    if (!gathers_latents(shape.spec)) {
      step.context_keys.push_back(keys);
    } else if (wave.kv_begin == 0) {
      step.context_latents.push_back(keys.tokens);
    }
    step.calls.push_back({queries, keys, blocks_of_row(padded, rank, R)});
  }
  return geometry;
}

double gathering_seconds(const PassCost& cost, double bytes, const std::vector<double>& work) {
  if (cost.shape.spec.window) return keys_round_rings(cost, bytes, work);
  const ClusterModel& cluster = cost.cluster;
  const AttentionShape& shape = cost.shape;
  const bool latents = gathers_latents(shape.spec);
  const auto waves =
      latents ? 1.0
              : static_cast<double>(gathered_waves(shape.spec.num_heads, shape.spec.num_kv_heads,
                                                   cost.plan.ring_size)
                                        .size());
  const PassCost::Sending gather = cost.to_all(bytes / waves, cost.plan.ring_size);
  // The first keys and the last gradients, whose copies are counted.
  const double ends =
      gather.seconds + (cost.backward ? 0.5 * (gather.seconds - gather.copying) : 0.0);
  // Gathered data are reordered to row order, and gradients back: a read and a write.
  const RowBytes bytes_of(shape);
  const double row_bytes =
      static_cast<double>(cost.padded.num_tokens()) *
      (latents ? bytes_of.latents : static_cast<double>(shape.spec.num_kv_heads) * bytes_of.kv);
  const double reordering = (cost.backward ? 4 : 2) * row_bytes / cluster.memory_bytes;
  return work[0] + reordering + ends + (waves - 1) * PassCost::exposed(gather, work[0] / waves);
}

/// With latents: the latents of the row, and a wave's keys and values during the expansion; in the
/// backward also the gradients of latents, keys and values. Without latents: a wave's keys and
/// values in row order, and the arriving keys and values of the next wave; in the backward also the
/// wave's gradients, and the previous wave's gradients in transit.
AttentionMemory memory(const ParallelPlan& plan, const AttentionShape& shape,
                       const Packing& padded) {
  if (shape.spec.window) return memory_of_degrees(plan, shape, padded);
  const int R = plan.ring_size;
  const std::vector<GatheredHeads> waves =
      gathered_waves(shape.spec.num_heads, shape.spec.num_kv_heads, R);
  const RowBytes bytes(shape);
  const auto T = static_cast<double>(padded.num_tokens());
  const double keys = T * static_cast<double>(waves[0].num_kv) * bytes.kv,
               queries = T / R * static_cast<double>(waves[0].num_queries) * bytes.query,
               outputs = T / R * static_cast<double>(shape.spec.num_heads) * bytes.output;
  const bool several = waves.size() > 1;
  AttentionMemory memory;
  if (gathers_latents(shape.spec)) {
    const double own = T / R * static_cast<double>(shape.spec.num_kv_heads) * bytes.kv,
                 latents = T * bytes.latents;
    memory.inputs = latents / R - own;
    memory.forward = std::max(latents + 2 * keys, several ? outputs : 0.0) - own;
    memory.backward = (1 + bytes.widening) * (latents - own) + (2 + bytes.widening) * keys +
                      (several ? bytes.widening * queries : 0.0);
    return memory;
  }
  memory.forward = several ? std::max(2.5 * keys, outputs) : 2 * keys;
  memory.backward = (several ? 2 : 1) * keys +
                    bytes.widening * ((2 + 1.0 / R) * keys + (several ? queries : 0.0));
  return memory;
}

std::unique_ptr<SequenceParallel> make(const ParallelPlan& /*plan*/, const Mesh& mesh,
                                       const BlockKernel& kernel) {
  return make_gathered_attention(mesh.ring, kernel);
}

}  // namespace

extern const Method kLlama3{
    .name = "llama3",
    .keys = {},
    .head_waves = kOneWave,
    .refusal = fits_any_heads,
    .ulysses_degrees = none_exchange_heads,
    .auto_degrees = none_exchange_heads,
    .complete = nothing_more,
    .padded_row = padded_for_zigzag,
    .token_order = zigzag_shares,
    .geometry = geometry,
    .context_seconds = gathering_seconds,
    .exchange_seconds = nothing_exchanged,
    .volume = volume_of_degrees,
    .memory = memory,
    .make = make,
};

}  // namespace longspan
