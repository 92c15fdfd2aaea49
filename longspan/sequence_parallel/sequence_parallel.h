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
/// `head_waves` > 1: a rank's heads are exchanged and attended to in that many parts, the next one
/// in flight, so that buffers shrink (UPipe, arXiv 2602.21196).
std::unique_ptr<SequenceParallel> make_ulysses(Group group, std::unique_ptr<SequenceParallel> inner,
                                               int head_waves = 1);

/// Dummy-Head Ulysses (Plug & Play SP): zero query heads are added up to a multiple of P, dropped
/// after.
std::unique_ptr<SequenceParallel> make_dummy_head_ulysses(Group group, const BlockKernel& kernel,
                                                          int head_waves = 1);

/// XTuner-Ulysses: heads are cut in slices along H as well, exchanged, and gathered inside `slices`
/// (neighbouring ranks of `group`), which all attend with the same heads.
std::unique_ptr<SequenceParallel> make_xtuner_ulysses(Group group, Group slices,
                                                      const BlockKernel& kernel);

/// Any P, any heads: the query heads lie on a line that is cut in P parts of equal causal cost; a
/// cut inside a head splits its queries.
std::unique_ptr<SequenceParallel> make_balanced_ulysses(Group group, const BlockKernel& kernel,
                                                        int head_waves = 1);

/// Ulysses whose exchanges run under the projections (VeOmni's Async Ulysses).
std::unique_ptr<SequenceParallel> make_async_ulysses(Group group, const BlockKernel& kernel,
                                                     int head_waves = 1);

/// Ring attention (arXiv 2310.01889): rank r holds the r-th part of the row; keys and values
/// travel.
std::unique_ptr<SequenceParallel> make_ring(Group group, const BlockKernel& kernel);

/// Striped attention (arXiv 2311.09431): token i is on rank i mod P.
std::unique_ptr<SequenceParallel> make_striped_ring(Group group, const BlockKernel& kernel);

/// Zigzag ring attention: each document in 2R chunks, rank r holds chunks r and 2R-1-r; keys and
/// values travel.
std::unique_ptr<SequenceParallel> make_zigzag_ring(Group group, const BlockKernel& kernel);

/// LoongTrain's double ring (arXiv 2406.18485), zigzag order: keys go round a window of neighbours,
/// and windows hop on the ring of `windows`. Ring rank = rank in windows * size of window + rank in
/// window.
std::unique_ptr<SequenceParallel> make_double_ring(Group window, Group windows,
                                                   const BlockKernel& kernel);

/// Llama 3's context parallelism (arXiv 2407.21783, section 3.3.2), zigzag order: keys of a few kv
/// heads at a time are gathered, their gradients reduce-scattered.
std::unique_ptr<SequenceParallel> make_llama3(Group group, const BlockKernel& kernel);

/// The only line of the program that chooses. Degree 1 is left out of a composition.
std::unique_ptr<SequenceParallel> make_attention(const ParallelPlan& plan, const Mesh& mesh,
                                                 const BlockKernel& kernel);

}  // namespace longspan
