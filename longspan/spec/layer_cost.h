// Costs of the parts of a layer, for the memory estimate (account/memory_model.h) and the time
// estimate (plan/cost_model.h). Numbers are elements per token in the compute dtype, unless said
// otherwise. No torch.
#pragma once

#include <cstdint>

namespace longspan {

/// Elements of matrices that are used together: of all, and of the largest.
struct MatrixCost {
  int64_t numbers = 0, largest = 0;
};

/// Floating point operations; a multiplication and an addition are two.
struct FlopCost {
  int64_t forward = 0, backward = 0;

  bool operator==(const FlopCost&) const = default;
};

/// Returns the FLOP of a token in matrices of `numbers` elements. The backward computes the
/// gradients of inputs and of matrices.
inline FlopCost flops_of_matrices(int64_t numbers) { return {2 * numbers, 4 * numbers}; }

struct TokenMixerCost {
  int64_t queries = 0, keys = 0, values = 0;  ///< inputs of the mixing
  int64_t output = 0;                         ///< output of the mixing
  int64_t latents = 0;          ///< latents of keys and values, if they may travel instead
  int64_t state_bytes = 0;      ///< saved by the mixing for its backward, besides its output
  int64_t saved_for_norms = 0;  ///< saved by the norms of queries and keys, unless recomputed
  int64_t saved_for_gate = 0;   ///< input of the gate, and other tensors between the inputs and the
                                ///< output of the mixing, unless recomputed
  /// Temporary bytes of the mixing's backward on GPUs when it runs in ATen operators because there
  /// is no fused kernel; for all heads, independent of the row.
  int64_t composed_bytes = 0;
  int64_t composed_row_bytes = 0;  ///< the same per token
  /// The backward recomputes the mixing; checkpointing saves nothing of it.
  bool is_computed_again = false;
  MatrixCost before, after;   ///< projections before and after the mixing
  FlopCost projection_flops;  ///< of these projections, per token
  /// FLOP of the mixing: per query head for each pair of a query and a key that it sees, and per
  /// token in a recurrence. Without recomputation in the backward.
  FlopCost pair_flops, recurrence_flops;
  int64_t kv_heads = 0, head_dim = 0;  ///< determine the tiles of flash attention
};

/// Minimum rows of a chunk in a feed-forward without experts: enough for gemms at full speed.
inline constexpr int64_t kMinChunkRows = 1024;

/// Costs of experts that a GPU computes at once, in bf16 (kernels/grouped_gemm.h). Each row exists
/// once per chosen expert.
struct GroupedCost {
  int64_t rows = 0;       ///< experts of a row; 0: they cannot run at once
  int64_t width = 0;      ///< widest activations of a row's experts, which determine the chunk size
  int64_t working = 0;    ///< temporary elements of the backward
  int64_t exchanged = 0;  ///< the same with distributed experts
};

struct FeedForwardCost {
  int64_t width = 0;  ///< of the widest activation, which determines the chunk size
  int64_t min_chunk_rows = kMinChunkRows;  ///< minimum rows of a chunk
  int64_t saved = 0;                       ///< saved for the backward, unless recomputed
  int64_t saved_hidden = 0;                ///< the part of `saved` in the dtype of hidden states
  int64_t choice_bytes = 0;  ///< bytes of the experts' choice, which the backward needs even if it
                             ///< recomputes all else; always on the device
  int64_t working = 0;       ///< temporary elements of the backward
  MatrixCost matrices;
  int64_t cast_at_once = 0;  ///< elements of matrices that are cast at a time
  FlopCost flops;            ///< per token, in matrices
  /// Temporary elements of the backward with distributed experts: inputs, output gradients and
  /// input gradients of each of a row's experts, outgoing and incoming.
  int64_t exchanged = 0;
  /// Parameter elements that one token does not use: those of experts not chosen.
  int64_t idle_matrices = 0;
  GroupedCost grouped = {};  ///< in place of width, working and exchanged
};

}  // namespace longspan
