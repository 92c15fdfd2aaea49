// What one kind of layers has for each token, in bytes: what the moments of a step are made of. No
// torch.
// D: model dim.
#pragma once

#include <cstdint>

#include "longspan/plan/memory_model.h"

namespace longspan {

/// Of one kind of layers, or, without the parts that the cost names, of the row.
struct LayerSizes {
  LayerCost cost;
  // Bytes of a token in the dtype that each is held in
  double D, queries, keys, kv, output, state;
  double latents;  // of keys and values that are made again where they travel
  double feed_forward_saved, feed_forward_working;
  double feed_forward_working_saved;  // where what it saves is there
  double feed_forward_forward, feed_forward_own_saved;
  double hidden;   // a hidden state in the dtype of computation
  double behind;   // D where there are norms behind what is added to h
  double dropped;  // an adapter's gradient of the widest input, before its dropout and behind it
  double queries_wide, kv_wide, output_wide;  // gradients of attention while they add up
  AttentionMemory shared;                     // what sharing the row adds
  double labels;                              // share of tokens that have one
  int64_t num_tokens, num_labels;             // of this rank
};

/// Does a GPU work on all of the layer's experts at once?
bool are_grouped(const MemoryFacts& facts, const LayerCost& cost);
/// Are the layer's experts shared out? Then all rows of a rank go through it at once.
bool shares_out(const MemoryFacts& facts, const LayerCost& cost);

LayerSizes sizes_of(const MemoryFacts& facts, const LayerCost& cost, const AttentionMemory& shared);

}  // namespace longspan
