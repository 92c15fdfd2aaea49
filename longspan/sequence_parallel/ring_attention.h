// Ring attention: keys and values travel from rank to rank. All ring methods share this code.
#pragma once

#include <memory>

#include "longspan/comm/group.h"
#include "longspan/sequence_parallel/ring_layout.h"
#include "longspan/sequence_parallel/ring_pass.h"
#include "longspan/sequence_parallel/sequence_parallel.h"

namespace longspan {

/// Makes ring attention. The keys and values of every rank travel around the ring; the partial
/// softmax results of each query are merged in fp32 (fp64 for fp64). A step without visible pairs
/// computes nothing.
///
/// Bytes sent by all R ranks together, for a padded row of T tokens, M kv heads with keys of K and
/// values of V elements, e bytes per element and g per gradient element (4; 8 in fp64): forward (R
/// - 1) T M (K + V) e, backward (R - 1) T M (K + V) (e + g).
///
/// In latent attention, latents may travel instead (passes_latents() in plan/attention_volume.h),
/// and each rank expands the arriving latents to keys and values of its heads. J elements per token
/// (AttentionSpec::latent_dim) then replace M (K + V) in the bytes above.
///
/// In a layer with a sliding window no keys travel around the ring. Each rank instead sends every
/// other rank the keys that the receiver's queries see (fetched_attention.h). `ring`: the group of
/// all ranks of `rings`, in the order of Rings::rank().
std::unique_ptr<SequenceParallel> make_ring_attention(Rings rings, Group ring, RingLayout layout,
                                                      const BlockKernel& kernel);

/// Method::geometry of a single ring with this layout.
template <const RingLayout& kLayout>
RankGeometry geometry_of_ring(const ParallelPlan& plan, const AttentionShape& shape,
                              const Packing& padded, int rank) {
  return ring_geometry(kLayout, plan, shape, padded, rank);
}

/// Method::make of a single ring with this layout.
template <const RingLayout& kLayout>
std::unique_ptr<SequenceParallel> make_ring(const ParallelPlan& /*plan*/, const Mesh& mesh,
                                            const BlockKernel& kernel) {
  return make_ring_attention(Rings({mesh.ring}), mesh.ring, kLayout, kernel);
}

/// Makes ring attention in zigzag order. `name`: the method, for messages.
std::unique_ptr<SequenceParallel> make_zigzag_ring(Rings rings, Group ring, const char* name,
                                                   const BlockKernel& kernel);

}  // namespace longspan
