#include "longspan/plan/exchange_volume.h"

#include "longspan/plan/geometry.h"
#include "longspan/registers/method.h"

namespace longspan {
namespace {

/// The backward sends keys and values (or latents) again, and returns their gradients.
AttentionVolume context_volume(const HeadRows& rows, const AttentionShape& shape) {
  const int64_t numbers = rows.context_kv * (shape.spec.key_dim + shape.spec.value_dim) +
                          rows.context_latents * shape.spec.latent_dim.value_or(0);
  return {numbers * shape.element_bytes, numbers * (shape.element_bytes + shape.gradient_bytes)};
}

}  // namespace

HeadRows rows_that_arrive(const ParallelPlan& plan, const AttentionShape& shape,
                          const Packing& padded) {
  const int64_t tokens_per_rank = padded.num_tokens() / plan.sequence_size;
  HeadRows rows;
  int64_t num_slices = 1;
  for (int rank = 0; rank < plan.sequence_size; ++rank) {
    const RankGeometry geometry = plan.method->geometry(plan, shape, padded, rank);
    num_slices = geometry.num_slices;
    const auto foreign = [&](const HeadTokens& heads) {
      return heads.num_heads * foreign_tokens(heads.tokens, rank, tokens_per_rank);
    };
    for (const AttentionStep& step : geometry.steps) {
      for (const HeadTokens& heads : step.queries) {
        rows.query += foreign(heads);
        rows.gathered_query += heads.num_heads * heads.tokens.length * (num_slices - 1);
      }
      for (const HeadTokens& heads : step.keys) {
        rows.kv += foreign(heads);
        rows.gathered_kv += heads.num_heads * heads.tokens.length * (num_slices - 1);
      }
      for (const HeadTokens& heads : step.context_keys) rows.context_kv += foreign(heads);
      for (const TokenSpan& tokens : step.latents) {
        rows.latents += foreign_tokens(tokens, rank, tokens_per_rank);
      }
      for (const TokenSpan& tokens : step.context_latents) {
        rows.context_latents += foreign_tokens(tokens, rank, tokens_per_rank);
      }
    }
  }
  // Each of `num_slices` neighbours gets its slice of the heads that they all attend with.
  for (int64_t* count : {&rows.query, &rows.kv, &rows.gathered_query, &rows.gathered_kv}) {
    *count /= num_slices;
  }
  return rows;
}

AttentionVolume exchange_volume(const HeadRows& rows, const AttentionShape& shape, bool in_waves,
                                bool checkpointing, bool output_is_known) {
  AttentionVolume volume;
  const int64_t inputs = (rows.query + rows.kv) * shape.key_bytes() +
                         rows.kv * shape.value_bytes() +
                         rows.latents * shape.spec.latent_dim.value_or(0) * shape.element_bytes,
                outputs = rows.query * shape.value_bytes();
  volume.forward = inputs + outputs;
  volume.backward = volume.forward;
  if (in_waves || checkpointing) volume.backward += inputs;
  if (checkpointing && !output_is_known) volume.backward += outputs;
  return volume;
}

AttentionVolume whole_sequence_volume(int64_t num_ranks, int64_t num_tokens, int64_t num_heads,
                                      int64_t bytes_in, int64_t bytes_out) {
  const int64_t rows = num_heads * (num_tokens - num_tokens / num_ranks);
  return {rows * (bytes_in + bytes_out), rows * (bytes_in + bytes_out)};
}

AttentionVolumeParts volume_of_degrees_in(bool in_waves, const ParallelPlan& plan,
                                          const AttentionShape& shape, const Packing& padded,
                                          bool checkpointing, bool output_is_known) {
  const HeadRows rows = rows_that_arrive(plan, shape, padded);
  return {exchange_volume(rows, shape, in_waves, checkpointing && plan.ulysses_size > 1,
                          output_is_known),
          context_volume(rows, shape)};
}

AttentionVolumeParts volume_of_degrees(const ParallelPlan& plan, const AttentionShape& shape,
                                       const Packing& padded, bool checkpointing,
                                       bool output_is_known) {
  return volume_of_degrees_in(plan.head_waves > 1, plan, shape, padded, checkpointing,
                              output_is_known);
}

}  // namespace longspan
