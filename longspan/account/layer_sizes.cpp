#include "longspan/account/layer_sizes.h"

#include <algorithm>

#include "longspan/spec/expert_gemms.h"

namespace longspan {

bool shares_out(const MemoryFacts& facts, const LayerCost& cost) {
  return facts.expert_parallel_size > 1 && cost.feed_forward.exchanged > 0;
}

bool are_grouped(const MemoryFacts& facts, const LayerCost& cost) {
  return facts.experts_at_once && cost.feed_forward.grouped.rows > 0;
}

namespace {

/// Returns the number of experts here whose matrices a pass casts for all of its gemms.
int64_t experts_cast(const MemoryFacts& facts, const LayerSizes& s, bool is_last) {
  const int64_t num_tokens = is_last ? s.num_labels : s.num_tokens;
  if (!are_grouped(facts, s.cost) || num_tokens < s.casts.num_tokens) return 0;
  return s.casts.num_experts / facts.expert_parallel_size;
}

}  // namespace

int64_t cast_at_once(const MemoryFacts& facts, const LayerSizes& s, bool is_last) {
  const int64_t others = std::max<int64_t>(0, experts_cast(facts, s, is_last) - 1);
  return s.cost.feed_forward.cast_at_once + others * s.casts.matrices;
}

double adapter_cast_bytes(const MemoryFacts& facts, const LayerSizes& s, bool is_last) {
  if (!facts.casts_expert_adapters) return 0.0;
  return static_cast<double>(facts.compute_bytes * experts_cast(facts, s, is_last) *
                             facts.expert_adapter_rank * s.casts.adapters);
}

double copied_rows_bytes(const MemoryFacts& facts, const LayerSizes& s, double rows, bool is_last) {
  // Only matrices that a pass casts lie side by side.
  if (!facts.copies_rows_of_experts || !facts.casts_blocks ||
      experts_cast(facts, s, is_last) == 0) {
    return 0.0;
  }
  // For each expert of a token, its inputs and the results of gate and up.
  const GroupedCost& grouped = s.cost.feed_forward.grouped;
  const int64_t numbers = grouped.rows * facts.hidden_size + 2 * grouped.width;
  return std::min(static_cast<double>(kLibraryBytes),
                  rows * static_cast<double>(facts.compute_bytes * numbers));
}

namespace {

int64_t working_of(const MemoryFacts& facts, const LayerCost& cost) {
  const FeedForwardCost& mlp = cost.feed_forward;
  const bool shared_out = shares_out(facts, cost);
  if (are_grouped(facts, cost)) {
    // Products of output gradients with the second matrices of the adapters of gate and up.
    const int64_t inner = 2 * mlp.grouped.rows * facts.expert_adapter_rank;
    return inner + (shared_out ? mlp.grouped.exchanged : mlp.grouped.working);
  }
  return mlp.working + (shared_out ? mlp.exchanged : 0);
}

}  // namespace

LayerSizes sizes_of(const MemoryFacts& facts, const LayerCost& cost, const AttentionMemory& shared,
                    const ExpertCasts& casts) {
  LayerSizes s{};
  s.cost = cost;
  s.casts = casts;
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
  s.feed_forward_working = cb * static_cast<double>(working_of(facts, cost));
  if (facts.has_magnitudes) {
    // A GPU scales fp32 products of bf16. A CPU multiplies bf16 by fp32 in two fp32 tensors.
    const double element = cb < 4 ? (facts.cuda ? 4 : cb + 8) : cb;
    s.scaled = (facts.drops_inputs ? 2 : 1) * element * static_cast<double>(mlp.width);
  }
  const bool behind = mlp.saved_hidden > 0;
  // Experts in one grouped gemm recompute the input of the norm after the experts in their own
  // memory.
  const int64_t made_again = behind && !are_grouped(facts, cost) ? mlp.width : 0;
  s.feed_forward_working_saved =
      s.feed_forward_working - cb * static_cast<double>(mlp.saved - mlp.saved_hidden + made_again);
  // In the forward, a chunk's saved tensors exist; a layer that saves nothing needs no more than in
  // the backward.
  s.feed_forward_forward = mlp.saved > 0 ? cb * static_cast<double>(mlp.saved - mlp.saved_hidden)
                                         : s.feed_forward_working;
  s.feed_forward_own_saved = cb * static_cast<double>(mlp.saved - mlp.saved_hidden);
  s.hidden = cb * static_cast<double>(facts.hidden_size);
  s.behind = behind ? s.D : 0.0;
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
              .output = shared.output / t,
              .outside_rule = shared.outside_rule / t};
  return s;
}

}  // namespace longspan
