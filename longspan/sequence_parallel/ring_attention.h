// Attention with keys that travel: what the ring kinds share.
#pragma once

#include <memory>

#include "longspan/comm/group.h"
#include "longspan/sequence_parallel/ring_layout.h"
#include "longspan/sequence_parallel/ring_pass.h"
#include "longspan/sequence_parallel/sequence_parallel.h"

namespace longspan {

/// The keys and values of every rank go round; the parts of each query's softmax are merged in fp32
/// (fp64 for fp64). A step in which nothing is seen computes nothing.
///
/// Bytes sent by all R ranks together, for a padded row of T tokens, M kv heads with keys of K and
/// values of V numbers, e bytes a number and g a gradient (4; 8 in fp64): forward (R - 1) T M (K +
/// V) e, backward (R - 1) T M (K + V) (e + g).
///
/// Of latent attention what keys and values are made of goes round (passes_latents() in
/// plan/attention_volume.h), and each rank makes those of its heads of what arrives: J numbers a
/// token (AttentionSpec::latent_dim) take the place of M (K + V).
///
/// Of a layer with a sliding window no keys go round: each rank sends every other one what that
/// sees (fetched_attention.h), by the group `ring` of all ranks of `rings`, in their order.
std::unique_ptr<SequenceParallel> make_ring_attention(Rings rings, Group ring, RingLayout layout,
                                                      const BlockKernel& kernel);

/// Method::geometry of a ring by itself, of this layout.
template <const RingLayout& kLayout>
RankGeometry geometry_of_ring(const ParallelPlan& plan, const AttentionShape& shape,
                              const Packing& padded, int rank) {
  return ring_geometry(kLayout, plan, shape, padded, rank);
}

/// Method::make of it.
template <const RingLayout& kLayout>
std::unique_ptr<SequenceParallel> make_ring(const ParallelPlan& /*plan*/, const Mesh& mesh,
                                            const BlockKernel& kernel) {
  return make_ring_attention(Rings({mesh.ring}), mesh.ring, kLayout, kernel);
}

/// The same attention in zigzag order, for messages under this name.
std::unique_ptr<SequenceParallel> make_zigzag_ring(Rings rings, Group ring, const char* name,
                                                   const BlockKernel& kernel);

}  // namespace longspan
