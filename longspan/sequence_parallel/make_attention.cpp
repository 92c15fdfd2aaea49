#include "longspan/sequence_parallel/sequence_parallel.h"

namespace longspan {

std::unique_ptr<SequenceParallel> make_attention(const ParallelPlan& plan, const Mesh& mesh,
                                                 const BlockKernel& kernel) {
  std::unique_ptr<SequenceParallel> attention =
      plan.ring_size > 1 ? make_zigzag_ring(mesh.ring, kernel) : make_local(kernel);
  if (plan.ulysses_size > 1) attention = make_ulysses(mesh.ulysses, std::move(attention));
  return attention;
}

}  // namespace longspan
