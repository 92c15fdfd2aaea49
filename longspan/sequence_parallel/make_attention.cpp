#include "longspan/sequence_parallel/sequence_parallel.h"
#include "longspan/sequence_parallel/whole_sequence.h"

namespace longspan {

std::shared_ptr<const WholeRow> SequenceParallel::whole_row(const Packing& packing) const {
  if (!sharers_) return Attention::whole_row(packing);
  return std::make_shared<WholeSequence>(*this, packing, sharers_->group, sharers_->way);
}

std::unique_ptr<SequenceParallel> make_attention(const ParallelPlan& plan, const Mesh& mesh,
                                                 const BlockKernel& kernel) {
  if (plan.sequence_size == 1) return make_local(kernel);
  std::unique_ptr<SequenceParallel> attention = plan.method->make(plan, mesh, kernel);
  attention->set_sharers(mesh.sequence, plan.recurrent_way);
  return attention;
}

}  // namespace longspan
