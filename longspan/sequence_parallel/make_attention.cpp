#include "longspan/sequence_parallel/sequence_parallel.h"

namespace longspan {
namespace {

// The context exchange: what remains of a method when heads have been exchanged.
std::unique_ptr<SequenceParallel> make_inner(const ParallelPlan& plan, const Mesh& mesh,
                                             const BlockKernel& kernel) {
  if (plan.ring_size == 1) return make_local(kernel);
  switch (plan.mode) {
    case SequenceParallelMode::kRing:
      return make_ring(mesh.ring, kernel);
    case SequenceParallelMode::kStripedRing:
      return make_striped_ring(mesh.ring, kernel);
    case SequenceParallelMode::kLlama3:
      return make_llama3(mesh.ring, kernel);
    case SequenceParallelMode::kLoongTrain:
      return make_double_ring(mesh.window, mesh.windows, kernel);
    default:
      return make_zigzag_ring(mesh.ring, kernel);
  }
}

}  // namespace

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
  std::unique_ptr<SequenceParallel> attention = make_inner(plan, mesh, kernel);
  if (plan.ulysses_size > 1) {
    attention = make_ulysses(mesh.ulysses, std::move(attention), plan.head_waves);
  }
  return attention;
}

}  // namespace longspan
