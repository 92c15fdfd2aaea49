// Costs of the parts of a layer, for the memory estimate (account/memory_model.h) and the time
// estimate (plan/cost_model.h). Numbers are elements per token in the compute dtype, unless said
// otherwise. No torch.
#pragma once

#include <cstdint>

namespace longspan {

/// Elements of matrices that are used together: `numbers` of all matrices, `largest` of the largest
/// matrix.
struct MatrixCost {
  int64_t numbers = 0, largest = 0;
};

/// Floating point operations. A multiplication with an addition counts as two.
struct FlopCost {
  int64_t forward = 0, backward = 0;

  bool operator==(const FlopCost&) const = default;
};

/// Returns the FLOP of a token in matrices of `numbers` elements. The backward computes the
/// gradients of inputs and of matrices.
inline FlopCost flops_of_matrices(int64_t numbers) { return {2 * numbers, 4 * numbers}; }

struct TokenMixerCost {
  int64_t queries = 0, keys = 0, values = 0;  ///< inputs of the mixing (attention or recurrence)
  int64_t output = 0;                         ///< output of the mixing
  int64_t latents = 0;          ///< latents, which ranks may exchange instead of keys and values
  int64_t state_bytes = 0;      ///< saved for the mixing's backward, besides the output
  int64_t saved_for_norms = 0;  ///< saved by the norms of queries and keys, unless recomputed
  int64_t saved_for_gate = 0;   ///< saved unless recomputed: the gate's input, and other tensors
                                ///< between the mixing's inputs and output
  /// The backward recomputes the mixing; checkpointing saves no tensor of the mixing.
  bool is_computed_again = false;
  MatrixCost before, after;   ///< projections before and after the mixing
  FlopCost projection_flops;  ///< FLOP of the projections, per token
  /// FLOP of the mixing, without recomputation in the backward. pair_flops: per query head, for
  /// each pair of a query and a visible key. recurrence_flops: per token.
  FlopCost pair_flops, recurrence_flops;
  int64_t kv_heads = 0, head_dim = 0;  ///< determine the tiles of flash attention
};

/// Minimum rows of a chunk in a feed-forward without experts: enough for gemms at full speed.
inline constexpr int64_t kMinChunkRows = 1024;

/// Costs of experts if a GPU computes all experts in one grouped gemm, in bf16
/// (kernels/grouped_gemm.h). A token's activations exist once per chosen expert.
struct GroupedCost {
  int64_t rows = 0;       ///< experts of a token; 0: no grouped gemm
  int64_t width = 0;      ///< widest activations of a token's experts; determines chunk size
  int64_t working = 0;    ///< temporary elements of the backward
  int64_t exchanged = 0;  ///< temporary elements with distributed experts
};

struct FeedForwardCost {
  int64_t width = 0;  ///< elements of the widest activation; determines chunk size
  int64_t min_chunk_rows = kMinChunkRows;  ///< minimum rows of a chunk
  int64_t saved = 0;                       ///< saved for the backward, unless recomputed
  int64_t saved_hidden = 0;                ///< the part of `saved` in the dtype of hidden states
  int64_t choice_bytes = 0;  ///< bytes of the choice of experts; always on the device, never
                             ///< recomputed
  int64_t working = 0;       ///< temporary elements of the backward
  MatrixCost matrices;
  int64_t cast_at_once = 0;  ///< elements of the matrices that are cast at the same time
  FlopCost flops;            ///< per token, in matrices
  /// Temporary elements of the backward with distributed experts: inputs, output gradients and
  /// input gradients of each of a token's experts, both sent and received.
  int64_t exchanged = 0;
  /// Parameter elements that one token does not use (experts that the router has not chosen).
  int64_t idle_matrices = 0;
  GroupedCost grouped = {};  ///< replaces width, working and exchanged
};

}  // namespace longspan
