// D: model dim, V: vocabulary.
#include "longspan/account/step_phases.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "longspan/account/attention_room.h"
#include "longspan/account/layer_sizes.h"
#include "longspan/account/logit_chunk.h"
#include "longspan/spec/composed_rule.h"
#include "longspan/spec/device_sizes.h"

namespace longspan {
namespace {

/// Returns the temporary bytes of matrices that are used together: `numbers` elements in all,
/// `largest` in one matrix, `cast_at_once` while they are cast.
double of_matrices(const MatrixCost& matrices, int64_t cast_at_once, bool cast, bool summed_apart,
                   const MemoryFacts& facts) {
  const double compute = static_cast<double>(facts.compute_bytes);
  // A chunk of a product, and on a CPU its copy in the accumulation dtype. On a GPU the product, if
  // there is one, is in fp32 directly.
  const double both = compute + 4.0, held = facts.cuda ? 4.0 : both;
  const double part = cast || summed_apart
                          ? held / both *
                                std::min(static_cast<double>(device_sizes(facts.cuda).gemm_bytes),
                                         both * static_cast<double>(matrices.largest))
                          : 0.0;
  return (cast ? compute * static_cast<double>(cast_at_once) : 0.0) +
         (summed_apart ? 4.0 * static_cast<double>(matrices.numbers) : 0.0) + part;
}

int64_t rows_of_chunk(int64_t bytes, int64_t width, int64_t element_bytes, int64_t least) {
  return std::max(least, bytes / std::max<int64_t>(1, width * element_bytes));
}

double mlp_rows(const MemoryFacts& facts, const LayerSizes& s) {
  if (shares_out(facts, s.cost)) return static_cast<double>(s.num_tokens);
  const FeedForwardCost& mlp = s.cost.feed_forward;
  const int64_t width = are_grouped(facts, s.cost) ? mlp.grouped.width : mlp.width,
                rows = facts.mlp_tiles > 0
                           ? (s.num_tokens + facts.mlp_tiles - 1) / facts.mlp_tiles
                           : rows_of_chunk(device_sizes(facts.cuda).feed_forward_bytes, width,
                                           facts.compute_bytes, mlp.min_chunk_rows);
  return static_cast<double>(std::min(rows, s.num_tokens));
}

/// Returns the bytes per token of tokens, labels, positions, documents and, if positions restart in
/// documents, places, each 8 bytes, of the whole row and of this rank's share; of the angles; and
/// of the indices of labels.
double index_bytes(const MemoryFacts& facts, const LayerSizes& s) {
  return (facts.keeps_places ? 40.0 : 32.0) * static_cast<double>(facts.sequence_size + 1) +
         4.0 * static_cast<double>(facts.angle_numbers) + 16.0 * s.labels;
}

/// Returns the bytes per token that one layer saves for its backward. `rows`: the share of the
/// tokens that pass its feed-forward.
double saved_for(const MemoryFacts& facts, const LayerSizes& s, double rows) {
  if (facts.checkpointing && s.cost.mixer.is_computed_again) {
    return s.D + (facts.offload_activations ? s.output : 0.0);
  }
  double saved = s.D + s.output + s.state + s.shared.leaves;
  if (facts.checkpointing) return saved + (facts.offload_activations ? s.shared.output : 0.0);
  saved += s.queries + s.kv + 4 + s.shared.inputs + s.shared.output;  // 4: a norm
  saved += static_cast<double>(facts.compute_bytes *
                               (s.cost.mixer.saved_for_norms + s.cost.mixer.saved_for_gate));
  saved += rows * (s.D + (facts.mlp_tiles > 0 ? 0.0 : s.feed_forward_saved));
  return saved;
}

/// Returns only the sizes that do not depend on the kind of layers.
LayerSizes sizes_of_row(const MemoryFacts& facts) { return sizes_of(facts, {}, {}); }
LayerSizes sizes_of(const MemoryFacts& facts, size_t kind) {
  const MemoryFacts::Layers& layers = facts.layers[kind];
  LayerSizes sizes = sizes_of(facts, layers.cost, layers.shared, layers.casts);
  sizes.rule = layers.rule;
  sizes.rule_tokens = layers.rule_tokens;
  return sizes;
}

double saved_by_layers(const MemoryFacts& facts) {
  double saved = 0;
  for (size_t i = 0; i < facts.layers.size(); ++i) {
    const bool last = i == facts.last_layer;
    saved += static_cast<double>(facts.layers[i].count - (last ? 1 : 0)) *
             saved_by_layer(facts, i, /*last=*/false);
    if (last) saved += saved_by_layer(facts, i, /*last=*/true);
  }
  return saved;
}

/// Returns the bytes per token that feed-forwards keep under checkpointing.
double kept_by_layers(const MemoryFacts& facts) {
  double bytes = 0;
  for (size_t i = 0; i < facts.layers.size(); ++i) {
    const int64_t kept = facts.layers[i].kept;
    const bool last = i == facts.last_layer && kept > 0;
    bytes += static_cast<double>(kept - (last ? 1 : 0)) * kept_by_layer(facts, i, /*last=*/false);
    if (last) bytes += kept_by_layer(facts, i, /*last=*/true);
  }
  return bytes;
}

/// Returns the bytes per token of the feed-forwards' choices of experts.
double chosen_by_layers(const MemoryFacts& facts) {
  double bytes = 0;
  for (size_t i = 0; i < facts.layers.size(); ++i) {
    const int64_t count = facts.layers[i].count;
    const bool last = i == facts.last_layer && count > 0;
    bytes += static_cast<double>(count - (last ? 1 : 0)) * chosen_by_layer(facts, i, false);
    if (last) bytes += chosen_by_layer(facts, i, /*last=*/true);
  }
  return bytes;
}

/// Hidden states before and after the last norm and their gradients, and a chunk of logits.
StepPhase phase_of_head(const MemoryFacts& facts, const LayerSizes& s) {
  const double index = index_bytes(facts, s);
  const double hidden = s.labels * s.D * static_cast<double>(facts.compute_bytes) /
                        static_cast<double>(facts.residual_bytes);
  const int64_t head = facts.vocab_size * facts.hidden_size;
  const LogitChunk chunk = logit_chunk(facts);
  const auto head_rows = static_cast<double>(std::min(s.num_labels, chunk.rows));
  const bool in_chunks = static_cast<double>(s.num_labels) > head_rows;
  const bool summed_apart = facts.sums_head_apart && in_chunks;
  return {.name = "the head",
          .per_token = index + s.labels * (s.D + chunk.label_bytes) + 2 * hidden,
          .fixed = head_rows * chunk.row_bytes +
                   of_matrices({head, head}, head, facts.casts_head, summed_apart, facts),
          .before_gradient = summed_apart ? head_rows * chunk.row_bytes : 0.0};
}

/// True if the mixer has steps after its attention, so that the backward recomputes the whole mixer
/// before it reaches the feed-forward.
bool is_mixed_again_first(const LayerSizes& s) {
  return s.shared.output > 0 || s.cost.mixer.saved_for_gate > 0;
}

/// Returns the bytes of a recomputed mixer in addition to queries, keys and values: the attention's
/// output once more in token order, or the tensors between the attention and the mixer's output.
double mixed_again(const MemoryFacts& facts, const LayerSizes& s) {
  const auto gate = static_cast<double>(facts.compute_bytes * s.cost.mixer.saved_for_gate);
  return 2 * s.shared.output + s.shared.inputs +
         (s.cost.mixer.saved_for_gate > 0 ? gate + s.output : 0.0);
}

/// Returns the temporary bytes of the row's largest part. `of_chunk`: a member of RuleMemory.
double composed_bytes(const MemoryFacts& facts, const LayerSizes& s, int64_t of_chunk) {
  return facts.cuda ? static_cast<double>(chunks_of_part(s.rule_tokens, s.rule) * of_chunk) : 0.0;
}

/// Adds the phases of the feed-forward. In the backward the gradients of the block's output and of
/// the attention's output exist; offloaded h and attention output are fetched back.
void add_feed_forward(const MemoryFacts& facts, const LayerSizes& s, const LayerPlace& place,
                      std::vector<StepPhase>& phases) {
  const double index = index_bytes(facts, s);
  const bool stored = facts.offload_activations;
  // In the last layer, only the tokens with a label pass.
  const double share = place.is_last ? s.labels : 1.0;
  const double rows = std::min(mlp_rows(facts, s), share * static_cast<double>(s.num_tokens));
  const MatrixCost& matrices = s.cost.feed_forward.matrices;
  const int64_t after = facts.checkpointing ? s.cost.mixer.after.numbers : 0;
  const bool in_chunks = share * static_cast<double>(s.num_tokens) > rows;
  const bool saved = (place.keeps || !facts.checkpointing) && facts.mlp_tiles == 0;
  const int64_t cast = cast_at_once(facts, s, place.is_last);
  const double beside = adapter_cast_bytes(facts, s, place.is_last) +
                        copied_rows_bytes(facts, s, rows, place.is_last);
  // The gate is then written into the saved tensor.
  const double forward = s.feed_forward_forward - (saved ? s.feed_forward_own_saved / 2 : 0.0);
  phases.push_back(
      {.name = "an MLP",
       .per_token = index + (facts.checkpointing ? 2 : 1) * share * s.D,
       .fixed = rows * (forward + s.dropped + s.scaled + 2 * s.hidden + s.behind) + beside +
                of_matrices({matrices.numbers, 0}, cast, facts.casts_blocks, false, facts),
       .in_forward = true,
       .has_mixed = false});
  if (facts.has_magnitudes) {  // lengths of adapted rows: sums of some rows, and rows in fp32
    const auto sums =
        static_cast<double>(std::min(device_sizes(facts.cuda).gemm_bytes, 4 * matrices.largest));
    phases.push_back({.name = "the lengths of rows",
                      .per_token = index + s.D,
                      .fixed = (facts.compute_bytes < 4 && !facts.cuda ? 2 : 1) * sums,
                      .in_forward = true,
                      .has_mixed = false});
  }
  // Per row of a chunk: the recomputed row between the halves of the block, its norm, the gradient
  // of the norm, and the gradient of the output if it has another dtype; in the last layer also the
  // mixer's output.
  const double again =
      facts.checkpointing ? s.D + s.behind + (place.is_last ? s.output : 0.0) : 0.0;
  const double of_output = s.D > s.hidden ? s.hidden : 0.0;
  // The input of the norm after the sublayer (counted in the compute dtype) and its gradient.
  const double of_behind = s.behind > 0 ? 2 * s.behind - s.hidden : 0.0;
  // The norm: one element per row, and on a GPU a gradient for each concurrent thread block.
  constexpr double kBlocks = 320;
  const double of_norm =
      4.0 * (rows + (facts.cuda ? kBlocks * static_cast<double>(facts.hidden_size) : 0.0));
  const double chunk =
      of_norm + beside +
      rows * ((saved ? s.feed_forward_working_saved : s.feed_forward_working) + s.dropped +
              s.scaled + again + 2 * s.hidden + of_output + of_behind) +
      of_matrices({matrices.numbers + after, matrices.largest}, cast + after, facts.casts_blocks,
                  facts.sums_blocks_apart && in_chunks, facts);
  if (!facts.checkpointing) {
    phases.push_back({"an MLP's backward", index + 2 * share * s.D, chunk});
    return;
  }
  // If the kernel's output is the attention's, it is saved; otherwise the mixer is replayed.
  const double replayed =
      stored || !is_mixed_again_first(s) ? 0.0 : mixed_again(facts, s) + s.queries + s.kv;
  const double back = s.D + s.output + s.state + s.shared.leaves + s.shared.output;
  phases.push_back({"an MLP's backward",
                    index + share * s.D + s.output + replayed + (stored ? back : 0.0), chunk});
  const double composed = composed_bytes(facts, s, s.rule.forward_bytes);
  if (replayed > 0 && composed > 0) {
    phases.push_back({"a mixer's replay", index + s.D + s.queries + s.kv + s.queries, composed});
  }
}

/// Returns the phases of one layer.
std::vector<StepPhase> phases_of(const MemoryFacts& facts, const LayerSizes& s,
                                 const LayerPlace& place) {
  const double index = index_bytes(facts, s);
  const bool stored = facts.offload_activations;
  std::vector<StepPhase> phases;
  add_feed_forward(facts, s, place, phases);
  // Attention's backward: gradients of its output, of queries, keys and values. Other tensors wait
  // in the store, if there is one; its own output has been fetched back.
  double attention = index + s.output + s.queries_wide + s.kv_wide + s.state +
                     // If the replay waits for the MLP, it happens here.
                     (stored ? std::max(s.shared.backward, s.shared.replay) : s.shared.backward);
  if (facts.checkpointing) attention += s.queries + s.kv + s.latents;
  if (facts.checkpointing && s.cost.mixer.is_computed_again) {
    attention += 2.0 * static_cast<double>(facts.compute_bytes * s.cost.mixer.saved_for_gate);
  }
  if (stored) attention += s.output + s.state + s.shared.leaves;
  // The gradient of h. On a GPU with a store it stays until the next tensors are requested.
  if (!stored || facts.cuda) attention += s.D;
  if (facts.reads_ahead) attention += saved_for(facts, s, 1.0);
  // All of them once more in fp32.
  if (facts.widens_attention) attention += s.queries_wide + 2 * s.output_wide + s.kv_wide;
  const AttentionRoom room = room_of_attention(facts, s);
  attention += room.per_token;
  phases.push_back({.name = "attention's backward",
                    .per_token = attention,
                    .fixed = attention_scratch(facts, s.cost.mixer) + room.fixed,
                    .has_kept = false});
  if (const double composed = composed_bytes(facts, s, s.rule.chunk_bytes); composed > 0) {
    // While a part's backward runs, the gradient of the mixer's output is gone, as are the tensors
    // of the gate (the rule's output, and a checkpointed layer's inputs of the gate), and the
    // gradient of the convolution's input is not there yet. States are saved for each part alone.
    phases.push_back({.name = "a recurrence's backward",
                      .per_token = attention - s.queries_wide - s.output - s.state -
                                   s.shared.outside_rule -
                                   (facts.checkpointing ? s.output + s.kv : 0.0),
                      .fixed = composed,
                      .has_kept = false});
  }
  // Attention's forward: tensors that are not saved.
  const double made = facts.checkpointing ? s.queries + s.kv + s.latents : 0.0;
  phases.push_back({.name = "attention",
                    .per_token = index + (stored ? s.D + s.output + s.state : 0.0) + made +
                                 std::max(0.0, s.shared.forward) + (facts.cuda ? s.output : 0.0),
                    .fixed = attention_scratch(facts, s.cost.mixer) +
                             composed_bytes(facts, s, s.rule.forward_bytes),
                    .in_forward = true});
  // The backward of the projections, of one chunk.
  const MatrixCost& before = s.cost.mixer.before;
  const int64_t chunk_rows =
      std::min(s.num_tokens, rows_of_chunk(device_sizes(facts.cuda).mixer_bytes,
                                           std::max(facts.hidden_size, s.cost.mixer.queries),
                                           facts.compute_bytes, kMinChunkRows));
  phases.push_back(
      {.name = "the projections' backward",
       .per_token = index + s.D + s.queries + (s.latents > 0 ? s.latents : s.kv) +
                    (stored ? s.D : 0.0) + (facts.reads_ahead ? saved_for(facts, s, 1.0) : 0.0),
       .fixed = static_cast<double>(chunk_rows) * (3 * s.hidden + s.queries + s.keys) +
                of_matrices(before, before.numbers, facts.casts_blocks,
                            facts.sums_blocks_apart && s.num_tokens > chunk_rows, facts),
       .has_kept = false});
  return phases;
}

/// Returns the bytes of ATen's operators' tensors in a pass over rows.
double bytes_of_composed_rows(const MemoryFacts& facts) {
  return facts.composes_rows ? static_cast<double>(kComposedNumbers * kComposedBytes) : 0.0;
}

double total(const StepPhase& phase, const LayerSizes& s) {
  return phase.per_token * static_cast<double>(s.num_tokens) + phase.fixed;
}

}  // namespace

double saved_by_layer(const MemoryFacts& facts, size_t kind, bool last) {
  const LayerSizes s = sizes_of(facts, kind);
  if (!last) return saved_for(facts, s, 1.0);
  // Without checkpointing, also the mixer's output for the rows with labels.
  return saved_for(facts, s, s.labels) + (facts.checkpointing ? 0.0 : s.labels * s.output);
}

double kept_by_layer(const MemoryFacts& facts, size_t kind, bool last) {
  if (!facts.checkpointing || facts.mlp_tiles > 0) return 0;
  const LayerSizes s = sizes_of(facts, kind);
  return s.feed_forward_saved * (last ? s.labels : 1.0);
}

double chosen_by_layer(const MemoryFacts& facts, size_t kind, bool last) {
  const LayerSizes s = sizes_of(facts, kind);
  return static_cast<double>(s.cost.feed_forward.choice_bytes) * (last ? s.labels : 1.0);
}

StepPhase head_phase(const MemoryFacts& facts) {
  StepPhase phase = phase_of_head(facts, sizes_of_row(facts));
  phase.fixed += bytes_of_composed_rows(facts);
  return phase;
}

std::vector<StepPhase> layer_phases(const MemoryFacts& facts, size_t kind,
                                    const LayerPlace& place) {
  std::vector<StepPhase> phases = phases_of(facts, sizes_of(facts, kind), place);
  for (StepPhase& phase : phases) phase.fixed += bytes_of_composed_rows(facts);
  return phases;
}

// The embedding's gradient. If it is in bf16 on a GPU, also some of its columns at a time in fp32
// (kernels/embedding).
StepPhase embedding_phase(const MemoryFacts& facts) {
  const LayerSizes s = sizes_of_row(facts);
  constexpr double kColumns = 512, kBytesOfColumn = 8, kPlaces = 64;
  const bool by_columns = facts.cuda && facts.residual_bytes == 2;
  return {"the embedding's backward",
          index_bytes(facts, s) + (facts.scales_embedding ? 2 : 1) * s.D +
              (by_columns ? kColumns * kBytesOfColumn : 0.0) + kPlaces,
          0.0};
}

StepPhase peak_phase(const MemoryFacts& facts) {
  std::vector<StepPhase> phases{head_phase(facts)};
  for (size_t kind = 0; kind < facts.layers.size(); ++kind) {
    if (facts.layers[kind].count == 0) continue;
    for (const bool is_last : {false, true}) {
      if (is_last && kind != facts.last_layer) continue;
      const auto more = layer_phases(facts, kind, {.keeps = false, .is_last = is_last});
      phases.insert(phases.end(), more.begin(), more.end());
    }
  }
  const LayerSizes s = sizes_of_row(facts);
  return *std::max_element(
      phases.begin(), phases.end(),
      [&](const StepPhase& a, const StepPhase& b) { return total(a, s) < total(b, s); });
}

TokenBytes token_bytes(const MemoryFacts& facts) {
  TokenBytes bytes;
  const double saved = saved_by_layers(facts);
  // The store also holds the gradient that waits for an attention's backward.
  if (facts.offload_activations) {
    bytes.on_host = saved + sizes_of_row(facts).D;
  } else {
    bytes.saved = saved;
  }
  bytes.saved += chosen_by_layers(facts);
  bytes.kept = kept_by_layers(facts);
  bytes.working = peak_phase(facts).per_token;
  return bytes;
}

}  // namespace longspan
