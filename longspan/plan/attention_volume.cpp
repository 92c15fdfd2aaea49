#include "longspan/plan/attention_volume.h"

#include "longspan/plan/method.h"

namespace longspan {

AttentionVolumeParts attention_volume_parts(const ParallelPlan& plan, const AttentionShape& shape,
                                            const Packing& padded, bool checkpointing,
                                            bool output_is_known) {
  if (plan.sequence_size == 1) return {};
  return plan.method->volume(plan, shape, padded, checkpointing, output_is_known);
}

AttentionVolume attention_volume(const ParallelPlan& plan, const AttentionShape& shape,
                                 const Packing& padded, bool checkpointing, bool output_is_known) {
  const auto [heads, context] =
      attention_volume_parts(plan, shape, padded, checkpointing, output_is_known);
  return {heads.forward + context.forward, heads.backward + context.backward};
}

}  // namespace longspan
