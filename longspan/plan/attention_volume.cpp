#include "longspan/plan/attention_volume.h"

#include "longspan/registers/method.h"

namespace longspan {

bool passes_latents(const AttentionSpec& spec, int ulysses_size, int head_waves) {
  if (!spec.latent_dim || spec.window || (ulysses_size > 1 && head_waves > 1)) return false;
  return ulysses_size * *spec.latent_dim < spec.num_kv_heads * (spec.key_dim + spec.value_dim);
}

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
