// LoongTrain's double ring (arXiv 2406.18485, section 4.2) in zigzag order: keys go round a window
// of W neighbours, and meanwhile those of the whole window hop to the next of D windows.
//
// Bytes: those of one ring of R = D W ranks (ring_attention.h), of which the outer ring carries
// D - 1 hops and the inner rings D (W - 1).
#include "longspan/sequence_parallel/ring_attention.h"
#include "longspan/sequence_parallel/zigzag_order.h"

namespace longspan {

std::unique_ptr<SequenceParallel> make_double_ring(Group window, Group windows,
                                                   const BlockKernel& kernel) {
  return make_ring_attention(Rings({std::move(windows), std::move(window)}),
                             {"double ring", zigzag_order, zigzag_blocks, zigzag_tokens_before},
                             kernel);
}

}  // namespace longspan
