// D: model dim, V: vocabulary.
#include "longspan/plan/fullest_moment.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "longspan/attention/flash/tile_sizes.h"
#include "longspan/spec/device_sizes.h"

namespace longspan {
namespace {

/// Of one kind of layers, or, without the parts that the cost names, of the row.
struct Sizes {
  LayerCost cost;
  // Bytes of a token in the dtype that each is held in
  double D, queries, keys, kv, output, state;
  double latents;  // of keys and values that are made again where they travel
  double feed_forward_saved, feed_forward_working;
  double dropped;  // an adapter's gradient of the widest input, before its dropout and behind it
  double queries_wide, kv_wide, output_wide;  // gradients of attention while they add up
  AttentionMemory shared;                     // what sharing the row adds
  double labels;                              // share of tokens that have one
  int64_t num_tokens, num_labels;             // of this rank
};

/// Are the layer's experts shared out? Then all rows of a rank go through it at once.
bool shares_out(const MemoryFacts& facts, const LayerCost& cost) {
  return facts.expert_parallel_size > 1 && cost.feed_forward.exchanged > 0;
}

Sizes sizes_of(const MemoryFacts& facts, const LayerCost& cost, const AttentionMemory& shared) {
  Sizes s{};
  s.cost = cost;
  const auto rb = static_cast<double>(facts.residual_bytes),
             cb = static_cast<double>(facts.compute_bytes);
  const double wide = facts.widens_attention ? 4.0 : cb;
  const auto queries = static_cast<double>(cost.mixer.queries),
             keys = static_cast<double>(cost.mixer.keys),
             kv = static_cast<double>(cost.mixer.keys + cost.mixer.values),
             output = static_cast<double>(cost.mixer.output);
  s.D = rb * static_cast<double>(facts.hidden_size);
  s.queries = cb * queries;
  s.keys = cb * keys;
  s.kv = cb * kv;
  s.output = cb * output;
  s.state = static_cast<double>(cost.mixer.state_bytes);
  s.latents = cb * static_cast<double>(cost.mixer.latents);
  s.queries_wide = wide * queries;
  s.kv_wide = wide * kv;
  s.output_wide = wide * output;
  const FeedForwardCost& mlp = cost.feed_forward;
  s.feed_forward_saved = cb * static_cast<double>(mlp.saved - mlp.saved_hidden) +
                         rb * static_cast<double>(mlp.saved_hidden);
  s.dropped = facts.drops_inputs ? 2 * cb * static_cast<double>(mlp.width) : 0.0;
  s.feed_forward_working =
      cb * static_cast<double>(cost.feed_forward.working +
                               (shares_out(facts, cost) ? cost.feed_forward.exchanged : 0));
  s.labels = facts.num_tokens == 0
                 ? 0.0
                 : static_cast<double>(facts.num_labels) / static_cast<double>(facts.num_tokens);
  s.num_tokens = (facts.num_tokens + facts.sequence_size - 1) / facts.sequence_size;
  s.num_labels = (facts.num_labels + facts.sequence_size - 1) / facts.sequence_size;
  const double t = static_cast<double>(std::max<int64_t>(1, s.num_tokens));
  s.shared = {.forward = shared.forward / t,
              .backward = shared.backward / t,
              .replay = shared.replay / t,
              .inputs = shared.inputs / t,
              .leaves = shared.leaves / t,
              .output = shared.output / t};
  return s;
}

/// Bytes that matrices which are used together take beside what is held of them anyway: `numbers`
/// in all, `largest` in one, `cast_at_once` while they are cast.
double of_matrices(const MatrixCost& matrices, int64_t cast_at_once, bool cast, bool summed_apart,
                   const MemoryFacts& facts) {
  const double compute = static_cast<double>(facts.compute_bytes);
  // A part of a product, and on a CPU a copy of it in the dtype that it is added to. A GPU's is in
  // fp32 at once, where its torch makes one at all.
  const double both = compute + 4.0, held = facts.cuda ? 4.0 : both;
  const double part = cast || summed_apart
                          ? held / both *
                                std::min(static_cast<double>(device_sizes(facts.cuda).gemm_bytes),
                                         both * static_cast<double>(matrices.largest))
                          : 0.0;
  return (cast ? compute * static_cast<double>(cast_at_once) : 0.0) +
         (summed_apart ? 4.0 * static_cast<double>(matrices.numbers) : 0.0) + part;
}

/// Buffers of the threads of attention/flash. ATen's kernel, which takes the other head dims, has
/// none.
double attention_scratch(const MemoryFacts& facts, const TokenMixerCost& mixer) {
  constexpr int64_t kQueries = flash::kQueryTile, kKeys = flash::kKeyTile;
  if (mixer.head_dim % flash::kHeadDimMultiple != 0) return 0;
  const int64_t tiles = mixer.kv_heads * ((facts.num_tokens + kKeys - 1) / kKeys);
  const int64_t floats = (5 * kKeys + 2 * kQueries) * mixer.head_dim + 2 * kQueries * kKeys;
  return 4.0 * static_cast<double>(std::min(facts.attention_threads, tiles) * floats);
}

int64_t rows_of_chunk(int64_t bytes, int64_t width, int64_t element_bytes, int64_t least) {
  return std::max(least, bytes / std::max<int64_t>(1, width * element_bytes));
}

double mlp_rows(const MemoryFacts& facts, const Sizes& s) {
  if (shares_out(facts, s.cost)) return static_cast<double>(s.num_tokens);
  const int64_t rows =
      facts.mlp_tiles > 0
          ? (s.num_tokens + facts.mlp_tiles - 1) / facts.mlp_tiles
          : rows_of_chunk(device_sizes(facts.cuda).feed_forward_bytes, s.cost.feed_forward.width,
                          facts.compute_bytes, s.cost.feed_forward.min_chunk_rows);
  return static_cast<double>(std::min(rows, s.num_tokens));
}

/// Tokens, labels, positions, documents and, where positions restart within them, places of the
/// whole row and of this rank's share in 8 bytes each, the angles, and where the labels are.
double index_bytes(const MemoryFacts& facts, const Sizes& s) {
  return (facts.keeps_places ? 40.0 : 32.0) * static_cast<double>(facts.sequence_size + 1) +
         4.0 * static_cast<double>(facts.angle_numbers) + 16.0 * s.labels;
}

/// Bytes a token that one layer saves for its backward.
double saved_by_layer(const MemoryFacts& facts, const Sizes& s, double rows) {
  if (facts.checkpointing && s.cost.mixer.is_computed_again) {
    return s.D + (facts.offload_activations ? s.output : 0.0);
  }
  double saved = s.D + s.output + s.state + s.shared.leaves;
  if (facts.checkpointing) return saved + (facts.offload_activations ? s.shared.output : 0.0);
  saved += s.queries + s.kv + 4 + s.shared.inputs + s.shared.output;  // and a norm
  saved += static_cast<double>(facts.compute_bytes *
                               (s.cost.mixer.saved_for_norms + s.cost.mixer.saved_for_gate));
  saved += rows * (s.D + (facts.mlp_tiles > 0 ? 0.0 : s.feed_forward_saved));
  return saved;
}

double saved_by_layers(const MemoryFacts& facts) {
  double saved = 0;
  for (size_t i = 0; i < facts.layers.size(); ++i) {
    const auto& [cost, count, shared, kept] = facts.layers[i];
    const Sizes s = sizes_of(facts, cost, shared);
    const bool last = i == facts.last_layer;
    saved += static_cast<double>(count - (last ? 1 : 0)) * saved_by_layer(facts, s, 1.0);
    // Of the last layer's feed-forward only rows with labels are wanted.
    if (last) saved += saved_by_layer(facts, s, s.labels);
  }
  return saved;
}

/// Bytes a token that feed-forwards keep under checkpointing.
double kept_by_layers(const MemoryFacts& facts) {
  if (!facts.checkpointing || facts.mlp_tiles > 0) return 0;
  double bytes = 0;
  for (size_t i = 0; i < facts.layers.size(); ++i) {
    const MemoryFacts::Layers& layers = facts.layers[i];
    const Sizes s = sizes_of(facts, layers.cost, layers.shared);
    const bool last = i == facts.last_layer && layers.kept > 0;
    const double rows = static_cast<double>(layers.kept) - (last ? 1.0 - s.labels : 0.0);
    bytes += rows * s.feed_forward_saved;
  }
  return bytes;
}

/// Bytes a token that feed-forwards keep of what they have chosen.
double chosen_by_layers(const MemoryFacts& facts) {
  double bytes = 0;
  for (size_t i = 0; i < facts.layers.size(); ++i) {
    const MemoryFacts::Layers& layers = facts.layers[i];
    const Sizes s = sizes_of(facts, layers.cost, layers.shared);
    const bool last = i == facts.last_layer && layers.count > 0;
    const double rows = static_cast<double>(layers.count) - (last ? 1.0 - s.labels : 0.0);
    bytes += rows * static_cast<double>(layers.cost.feed_forward.choice_bytes);
  }
  return bytes;
}

/// The head: hidden states before and after the last norm and their gradients, a chunk of logits.
Moment head_moment(const MemoryFacts& facts, const Sizes& s) {
  const double index = index_bytes(facts, s);
  const double hidden = s.labels * s.D * static_cast<double>(facts.compute_bytes) /
                        static_cast<double>(facts.residual_bytes);
  const auto V = static_cast<double>(facts.vocab_size);
  const int64_t head = facts.vocab_size * facts.hidden_size;
  const double logits = V * (facts.compute_bytes < 4 ? 4.0 + 2.0 : 4.0);  // and rounded to bf16
  const auto head_rows = static_cast<double>(
      std::min(s.num_labels, device_sizes(facts.cuda).head.rows(facts.vocab_size, 4)));
  const bool head_in_chunks = static_cast<double>(s.num_labels) > head_rows;
  return {"the head", index + s.labels * s.D + 2 * hidden,
          head_rows * logits + of_matrices({head, head}, head, facts.casts_head,
                                           facts.sums_head_apart && head_in_chunks, facts)};
}

/// What a GPU's kernels work with in attention's backward, of a token: the gradient of queries in
/// fp32, where parts of it add up; where query heads share a key head, the gradients of keys and
/// values for each query head; the sum over each query's products.
double kernel_room(const MemoryFacts& facts, const Sizes& s) {
  const TokenMixerCost& mixer = s.cost.mixer;
  if (!facts.cuda || facts.compute_bytes != 2 || mixer.head_dim == 0) return 0.0;
  const auto queries = static_cast<double>(mixer.queries);
  const double expanded = mixer.queries > mixer.keys ? 2.0 * s.queries : 0.0;
  return 4.0 * queries + expanded + 4.0 * queries / static_cast<double>(mixer.head_dim);
}

/// The moments of one kind of layers.
std::vector<Moment> moments_of(const MemoryFacts& facts, const Sizes& s) {
  const double index = index_bytes(facts, s);
  const bool stored = facts.offload_activations;
  std::vector<Moment> moments;
  // The MLP's backward: gradients of the block's output and of the attention's; where they left the
  // device, h and the attention's output come back.
  const double rows = mlp_rows(facts, s);
  const MatrixCost &matrices = s.cost.feed_forward.matrices, &before = s.cost.mixer.before;
  const int64_t after = facts.checkpointing ? s.cost.mixer.after.numbers : 0;
  const bool mlp_in_chunks = static_cast<double>(s.num_tokens) > rows;
  const double chunk = rows * (s.feed_forward_working + s.dropped + 4 * s.D) +
                       of_matrices({matrices.numbers + after, matrices.largest},
                                   s.cost.feed_forward.cast_at_once + after, facts.casts_blocks,
                                   facts.sums_blocks_apart && mlp_in_chunks, facts);
  if (facts.checkpointing) {
    // Where the kernel's output is the attention's, it is there; else it is replayed for it.
    const double replayed = stored || s.shared.output == 0
                                ? 0.0
                                : 2 * s.shared.output + s.queries + s.kv + s.shared.inputs;
    const double back = s.D + s.output + s.state + s.shared.leaves + s.shared.output;
    moments.push_back(
        {"an MLP's backward", index + s.D + s.output + replayed + (stored ? back : 0.0), chunk});
  } else {
    moments.push_back({"an MLP's backward", index + 2 * s.D, chunk});
  }
  // The attention's: gradients of its output, of queries, keys and values. What else is needed
  // later waits in the store, where there is one, and its own output is back from there.
  double attention = index + s.output + s.queries_wide + s.kv_wide + s.state +
                     // Where the replay waits until the MLP is done, it is here.
                     (stored ? std::max(s.shared.backward, s.shared.replay) : s.shared.backward);
  if (facts.checkpointing) attention += s.queries + s.kv + s.latents;
  if (facts.checkpointing && s.cost.mixer.is_computed_again) {
    attention += 2.0 * static_cast<double>(facts.compute_bytes * s.cost.mixer.saved_for_gate);
  }
  attention += stored ? s.output + s.state + s.shared.leaves : s.D;
  if (facts.reads_ahead) attention += saved_by_layer(facts, s, 1.0);
  // All of them once more in fp32.
  if (facts.widens_attention) attention += s.queries_wide + 2 * s.output_wide + s.kv_wide;
  attention += kernel_room(facts, s);
  const auto composed = facts.cuda ? static_cast<double>(s.cost.mixer.composed_bytes) : 0.0;
  moments.push_back(
      {"attention's backward", attention, attention_scratch(facts, s.cost.mixer) + composed});
  // Its forward, of what is not saved.
  const double made = facts.checkpointing ? s.queries + s.kv + s.latents : 0.0;
  moments.push_back(
      {"attention",
       index + (stored ? s.D + s.output + s.state : 0.0) + made + std::max(0.0, s.shared.forward),
       attention_scratch(facts, s.cost.mixer)});
  // The projections': a chunk's of all.
  const int64_t chunk_rows =
      std::min(s.num_tokens, rows_of_chunk(device_sizes(facts.cuda).mixer_bytes,
                                           std::max(facts.hidden_size, s.cost.mixer.queries),
                                           facts.compute_bytes, kMinChunkRows));
  moments.push_back({"the projections' backward",
                     index + s.D + s.queries + (s.latents > 0 ? s.latents : s.kv) +
                         (stored ? s.D : 0.0) +
                         (facts.reads_ahead ? saved_by_layer(facts, s, 1.0) : 0.0),
                     static_cast<double>(chunk_rows) * (3 * s.D + s.queries + s.keys) +
                         of_matrices(before, before.numbers, facts.casts_blocks,
                                     facts.sums_blocks_apart && s.num_tokens > chunk_rows, facts)});
  return moments;
}

double total(const Moment& moment, const Sizes& s) {
  return moment.per_token * static_cast<double>(s.num_tokens) + moment.fixed;
}

}  // namespace

Moment fullest_moment(const MemoryFacts& facts) {
  const Sizes s = sizes_of(facts, {}, {});
  std::vector<Moment> moments{head_moment(facts, s)};
  for (const MemoryFacts::Layers& layers : facts.layers) {
    if (layers.count == 0) continue;
    const std::vector<Moment> more = moments_of(facts, sizes_of(facts, layers.cost, layers.shared));
    moments.insert(moments.end(), more.begin(), more.end());
  }
  return *std::max_element(moments.begin(), moments.end(), [&](const Moment& a, const Moment& b) {
    return total(a, s) < total(b, s);
  });
}

TokenBytes token_bytes(const MemoryFacts& facts) {
  const Sizes s = sizes_of(facts, {}, {});
  TokenBytes bytes;
  const double saved = saved_by_layers(facts);
  // The store also holds the gradient that waits for an attention's backward.
  if (facts.offload_activations) {
    bytes.on_host = saved + s.D;
  } else {
    bytes.saved = saved;
  }
  bytes.saved += chosen_by_layers(facts);
  bytes.kept = kept_by_layers(facts);
  bytes.working = fullest_moment(facts).per_token;
  return bytes;
}

}  // namespace longspan
