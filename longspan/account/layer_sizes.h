// Bytes per token of one kind of layers, from which the phases of a step are computed. No torch.
// D: model dim.
#pragma once

#include <cstdint>

#include "longspan/account/memory_model.h"

namespace longspan {

/// Sizes of one kind of layers. If `cost` is empty, only the sizes that depend on the row are
/// nonzero.
struct LayerSizes {
  LayerCost cost;
  ExpertCasts casts;
  // Bytes per token, in the dtype of each tensor.
  double D, queries, keys, kv, output, state;
  double latents;  // latents, which ranks may exchange instead of keys and values
  double feed_forward_saved, feed_forward_working;  // saved for the backward; peak of temporaries
  double feed_forward_working_saved;  // the same peak, if the backward recomputes nothing
  double feed_forward_forward;        // peak of temporaries in the forward
  double feed_forward_own_saved;      // feed_forward_saved without hidden states
  double hidden;                      // a hidden state in the compute dtype
  double behind;                      // equals D if the layer has norms after the sublayers, else 0
  double dropped;  // input gradient of the widest adapter, before and after the dropout's backward
  double scaled;   // output gradient of the widest adapter, times the factors of magnitudes
  double queries_wide, kv_wide, output_wide;  // gradients of attention, in the accumulation dtype
  RuleMemory rule;                            // of a recurrence
  int64_t rule_tokens;                        // of a call of its rule
  AttentionMemory shared;                     // memory added by sequence parallelism
  double labels;                              // fraction of tokens that have a label
  int64_t num_tokens, num_labels;             // tokens and labels of this rank
};

/// True if a GPU computes all of the layer's experts at once.
bool are_grouped(const MemoryFacts& facts, const LayerCost& cost);
/// Returns the elements of feed-forward matrices that are cast at the same time. Through the last
/// layer, only tokens with a label pass.
int64_t cast_at_once(const MemoryFacts& facts, const LayerSizes& s, bool is_last);
/// Returns the bytes of experts' adapters that are cast at the same time; 0 unless they are held in
/// higher precision.
double adapter_cast_bytes(const MemoryFacts& facts, const LayerSizes& s, bool is_last);
/// Returns the bytes of rows that a library's grouped gemm copies, in a chunk of `rows` rows; 0
/// where Longspan's kernels compute all experts.
double copied_rows_bytes(const MemoryFacts& facts, const LayerSizes& s, double rows, bool is_last);
/// True if the layer's experts are distributed over ranks. The layer then computes all tokens of a
/// rank at once, not in chunks.
bool shares_out(const MemoryFacts& facts, const LayerCost& cost);

LayerSizes sizes_of(const MemoryFacts& facts, const LayerCost& cost, const AttentionMemory& shared,
                    const ExpertCasts& casts = {});

}  // namespace longspan
