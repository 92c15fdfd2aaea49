// One interface for every way to spread the tokens of a row over ranks: a token order plus an
// attention.
#pragma once

#include <memory>

#include "longspan/attention/attention.h"
#include "longspan/attention/block_kernel.h"
#include "longspan/comm/group.h"
#include "longspan/comm/mesh.h"
#include "longspan/data/batch.h"

namespace longspan {

class SequenceParallel : public Attention {
 public:
  /// Which tokens of a row this rank holds, and the padding that the method needs: as little as
  /// possible, and so that each rank holds the same number of tokens, a multiple of `multiple`
  /// (what an outer method asks of an inner one).
  virtual TokenOrder token_order(const Packing& packing, int64_t multiple = 1) const = 0;
};

/// Degree 1: the plain kernel.
std::unique_ptr<SequenceParallel> make_local(const BlockKernel& kernel);

/// DeepSpeed-Ulysses (arXiv 2309.14509): tokens are exchanged for heads by all-to-all, `inner`
/// attends with a share of the heads, and back. K < P: each kv head goes to the ranks that need it,
/// once.
std::unique_ptr<SequenceParallel> make_ulysses(Group group,
                                               std::unique_ptr<SequenceParallel> inner);

/// Zigzag ring attention: each document in 2R chunks, rank r holds chunks r and 2R-1-r; keys and
/// values travel.
std::unique_ptr<SequenceParallel> make_zigzag_ring(Group group, const BlockKernel& kernel);

/// The only line of the program that chooses: Ulysses(mesh.ulysses, Ring(mesh.ring, kernel)),
/// degree 1 left out.
std::unique_ptr<SequenceParallel> make_attention(const ParallelPlan& plan, const Mesh& mesh,
                                                 const BlockKernel& kernel);

}  // namespace longspan
