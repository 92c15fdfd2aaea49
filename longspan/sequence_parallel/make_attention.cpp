#include "longspan/sequence_parallel/sequence_parallel.h"

namespace longspan {

std::unique_ptr<SequenceParallel> make_attention(const ParallelPlan& plan, const Mesh& mesh,
                                                 const BlockKernel& kernel) {
  return plan.sequence_size == 1 ? make_local(kernel) : plan.method->make(plan, mesh, kernel);
}

}  // namespace longspan
