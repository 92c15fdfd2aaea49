// What the parts of a layer cost: for the account of memory (plan/memory_model.h) and for estimates
// of time (plan/cost_model.h). Numbers are those of one token, and are held in the dtype of
// computation. No torch.
#pragma once

#include <cstdint>

namespace longspan {

/// Numbers of matrices that are used together: of all, and of the largest.
struct MatrixCost {
  int64_t numbers = 0, largest = 0;
};

/// Floating point operations: a multiplication and an addition are two.
struct FlopCost {
  int64_t forward = 0, backward = 0;

  bool operator==(const FlopCost&) const = default;
};

/// Of a token that goes through matrices of so many numbers: the backward makes the gradients of
/// inputs and of matrices.
inline FlopCost flops_of_matrices(int64_t numbers) { return {2 * numbers, 4 * numbers}; }

struct TokenMixerCost {
  int64_t queries = 0, keys = 0, values = 0;  ///< what the tokens are mixed by
  int64_t output = 0;                         ///< what the mixing gives
  int64_t latents = 0;          ///< what keys and values are made of, where they may travel as that
  int64_t state_bytes = 0;      ///< what the mixing saves for its backward beside its output
  int64_t saved_for_norms = 0;  ///< what norms of queries and keys save, unless recomputed
  int64_t saved_for_gate = 0;   ///< what was mixed before its gate, unless recomputed, and
                                ///< what else lies between the inputs and the output
  /// What the mixing's backward works with, whatever the row, where it is composed of ATen's
  /// operators since no fused one is there for it: on GPUs. Bytes; of all heads.
  int64_t composed_bytes = 0;
  int64_t composed_row_bytes = 0;  ///< and of each token, there
  /// The backward computes the mixing again: checkpointing saves nothing of it.
  bool is_computed_again = false;
  MatrixCost before, after;   ///< of the projections before and after the mixing
  FlopCost projection_flops;  ///< of a token, in those projections
  /// Of the mixing: of a query head, for each pair of a query and a key that it sees; and of a
  /// token, where it goes over rows. Without what a backward computes again.
  FlopCost pair_flops, recurrence_flops;
  int64_t kv_heads = 0, head_dim = 0;  ///< what the tiles of flash attention are made of
};

/// Rows below which the chunks of a feed-forward whose rows all go through the same matrices are
/// not cut: enough for gemms at full speed.
inline constexpr int64_t kMinChunkRows = 1024;

/// Of experts that a GPU works on at once, in bf16 (kernels/grouped_gemm.h): a row is there once
/// for each of its experts.
struct GroupedCost {
  int64_t rows = 0;       ///< experts of a row; 0: they cannot be worked on at once
  int64_t width = 0;      ///< of all its experts' widest activations, by which chunks are chosen
  int64_t working = 0;    ///< what the backward works with
  int64_t exchanged = 0;  ///< and where experts are shared out
};

struct FeedForwardCost {
  int64_t width = 0;  ///< of its widest activation, by which its chunks are chosen
  int64_t min_chunk_rows = kMinChunkRows;  ///< its chunks are not cut below so many rows
  int64_t saved = 0;                       ///< what it saves for its backward, unless recomputed
  int64_t saved_hidden = 0;                ///< of these, what is in the dtype of hidden states
  int64_t choice_bytes = 0;  ///< what its backward is told of what was chosen, also where it
                             ///< computes all else again; on the device in any case
  int64_t working = 0;       ///< what its backward works with
  MatrixCost matrices;
  int64_t cast_at_once = 0;  ///< numbers of them that are cast for uses at a time
  FlopCost flops;            ///< of a token, in matrices
  /// What its backward also works with where experts are shared out: inputs, output gradients and
  /// input gradients of each of a row's experts, as they leave and as they come.
  int64_t exchanged = 0;
  /// Numbers of parameters that one token does not go through: those of experts not chosen.
  int64_t idle_matrices = 0;
  GroupedCost grouped = {};  ///< in the place of width, working and exchanged
};

}  // namespace longspan
