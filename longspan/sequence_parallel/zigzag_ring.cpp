// Ring attention (arXiv 2310.01889) in zigzag order: every rank has the same work in every step.
// Bytes: ring_attention.h.
#include "longspan/sequence_parallel/ring_attention.h"
#include "longspan/sequence_parallel/zigzag_order.h"

namespace longspan {

std::unique_ptr<SequenceParallel> make_zigzag_ring(Group group, const BlockKernel& kernel) {
  return make_ring_attention(Rings({std::move(group)}),
                             {"zigzag ring", zigzag_order, zigzag_blocks, zigzag_tokens_before},
                             kernel);
}

}  // namespace longspan
