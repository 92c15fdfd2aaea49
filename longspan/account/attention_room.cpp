#include "longspan/account/attention_room.h"

#include <algorithm>

#include "longspan/attention/flash/tile_sizes.h"
#include "longspan/attention/flash_accumulators.h"

namespace longspan {
namespace {

/// True if a CPU's attention is in ATen's kernel: for head dims that attention/flash does not take.
bool attends_by_aten(const MemoryFacts& facts, const TokenMixerCost& mixer) {
  return !facts.cuda && mixer.keys > 0 && mixer.head_dim % flash::kHeadDimMultiple != 0;
}

}  // namespace

double attention_scratch(const MemoryFacts& facts, const TokenMixerCost& mixer) {
  const int64_t T = facts.num_tokens, threads = facts.attention_threads;
  if (attends_by_aten(facts, mixer)) {  // two blocks of scores
    const int64_t rows = std::min<int64_t>(T, T >= 512 ? 256 : T >= 192 ? 64 : 32);
    return 2 * 4.0 * static_cast<double>(threads * rows * std::min<int64_t>(T, 512));
  }
  const int64_t tiles = mixer.kv_heads * ((T + flash::kKeyTile - 1) / flash::kKeyTile);
  const int64_t floats = flash::backward_floats(mixer.head_dim, mixer.head_dim);
  return 4.0 * static_cast<double>(std::min(threads, tiles) * floats);
}

namespace {

/// Returns the bytes of flash attention 2's accumulators in one call: of all queries, of the rows
/// beside each document, and, for the same bits each time, for each thread block that shares a
/// head. A rank may compute the whole row with a share of the heads, so that more blocks share one.
double accumulators(const MemoryFacts& facts, double heads, double padded_dim, double tokens) {
  const double blocks =
      heads + static_cast<double>(facts.deterministic_multiprocessors * facts.sequence_size);
  const auto beside = static_cast<double>(FlashAccumulators::kRowsBeside * facts.num_documents);
  return 4.0 * padded_dim * blocks * (tokens + beside);
}

/// On a GPU: the fp32 gradient of queries, accumulated in padded heads; the gradients of keys and
/// values per query head if query heads share a key head; a sum per query. After the kernel all
/// gradients also exist in fp32. If the heads of keys are longer than those of values, all are
/// padded to the longer size.
AttentionRoom room_on_gpu(const MemoryFacts& facts, const LayerSizes& s) {
  const TokenMixerCost& mixer = s.cost.mixer;
  const int64_t value_dim = std::max<int64_t>(1, mixer.values / mixer.kv_heads),
                head_dim = std::max(mixer.head_dim, value_dim);
  const auto heads = static_cast<double>(mixer.output / value_dim),
             kv_heads = static_cast<double>(mixer.kv_heads), dim = static_cast<double>(head_dim),
             tokens = static_cast<double>(s.num_tokens),
             padded = static_cast<double>(FlashAccumulators{.head_dim = head_dim}.padded_dim());
  const double of_queries = 4.0 * heads * padded,
               expanded = heads > kv_heads ? 2 * 2.0 * heads * dim : 0.0,
               keys_wide = 2 * 4.0 * kv_heads * dim;
  AttentionRoom room;
  room.per_token = of_queries + std::max(expanded, keys_wide) + 4.0 * heads;
  // Values, outputs and their gradients, and the gradient of values.
  if (value_dim != mixer.head_dim) room.per_token += 2.0 * dim * (2 * kv_heads + 2 * heads);
  const auto most = static_cast<double>(FlashAccumulators::kMostBytes);
  const double all = accumulators(facts, heads, padded, tokens);
  room.fixed = std::max(0.0, std::min(all, most) - of_queries * tokens);
  if (all > most || facts.attends_in_calls) {
    // Sums of gradients beside those of a call.
    room.fixed = std::min(all, most);
    room.per_token += std::min(expanded, keys_wide);
  }
  // Queries, outputs, their gradients, keys and values of a call, gathered.
  if (facts.attends_in_calls) room.per_token += 2.0 * dim * (3 * heads + 2 * kv_heads);
  return room;
}

}  // namespace

AttentionRoom room_of_attention(const MemoryFacts& facts, const LayerSizes& s) {
  const TokenMixerCost& mixer = s.cost.mixer;
  if (attends_by_aten(facts, mixer)) {
    // A copy of the output's gradient, and gradients of keys and values per query head.
    const double group = static_cast<double>(mixer.queries) / static_cast<double>(mixer.keys);
    return {.per_token = s.output_wide + (group - 1) * s.kv_wide};
  }
  const bool on_gpu =
      facts.cuda && facts.compute_bytes == 2 && mixer.head_dim > 0 && mixer.kv_heads > 0;
  return on_gpu ? room_on_gpu(facts, s) : AttentionRoom{};
}

}  // namespace longspan
