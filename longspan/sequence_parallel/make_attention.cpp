#include "longspan/sequence_parallel/sequence_parallel.h"

namespace longspan {

std::unique_ptr<SequenceParallel> make_attention(const ParallelPlan& plan, const Mesh& mesh,
                                                 const BlockKernel& kernel) {
  if (plan.sequence_size == 1) return make_local(kernel);
  switch (plan.mode) {
    case SequenceParallelMode::kDummyHeadUlysses:
      return make_dummy_head_ulysses(mesh.sequence, kernel, plan.head_waves);
    case SequenceParallelMode::kXtunerUlysses:
      return make_xtuner_ulysses(mesh.sequence, mesh.slices, kernel);
    case SequenceParallelMode::kAsyncUlysses:
      return make_async_ulysses(mesh.sequence, kernel, plan.head_waves);
    case SequenceParallelMode::kBalancedUlysses:
      return make_balanced_ulysses(mesh.sequence, kernel, plan.head_waves);
    default:
      break;
  }
  std::unique_ptr<SequenceParallel> attention =
      plan.ring_size > 1 ? make_zigzag_ring(mesh.ring, kernel) : make_local(kernel);
  if (plan.ulysses_size > 1) {
    attention = make_ulysses(mesh.ulysses, std::move(attention), plan.head_waves);
  }
  return attention;
}

}  // namespace longspan
