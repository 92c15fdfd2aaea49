// In comments: Q, KV, O are the bytes of one rank's own queries, of its keys and values, and of its
// outputs.
#include "longspan/plan/attention_memory.h"

#include <algorithm>
#include <vector>

#include "longspan/plan/ring_parts.h"
#include "longspan/registers/method.h"

namespace longspan {
namespace {

/// With more waves, the backward prefetches only the next queries (head_waves.cpp).
constexpr int kMostWavesInFlight = 4;

double rows_of(const std::vector<HeadTokens>& all) {
  double rows = 0;
  for (const HeadTokens& heads : all) {
    rows += static_cast<double>(heads.num_heads * heads.tokens.length);
  }
  return rows;
}

/// One step of travelling keys.
struct Hop {
  int64_t kv_heads = 0;  // of a kernel call
  double kv = 0;         // head rows that have arrived for the step
  double latents = 0;    // or number of tokens whose latents have arrived
  double queries = 0;    // head rows that see any of the arrived keys
};

Hop hop_of(const AttentionStep& step) {
  Hop hop{.kv = rows_of(step.context_keys)};
  for (const TokenSpan& tokens : step.context_latents) {
    hop.latents += static_cast<double>(tokens.length);
  }
  for (const AttentionCall& call : step.calls) {
    hop.kv_heads = std::max(hop.kv_heads, call.keys.num_heads);
    if (call.blocks.empty()) continue;
    int64_t begin = call.blocks[0].q_begin, end = begin;
    for (const Block& block : call.blocks) {
      begin = std::min(begin, block.q_begin);
      end = std::max(end, block.q_begin + block.q_length);
    }
    hop.queries += static_cast<double>(call.queries.num_heads * (end - begin));
  }
  return hop;
}

/// Returns the memory of one pass around the rings whose keys travel in `num_parts` parts
/// (ring_parts.h): keys that have arrived, keys in transit, and copies of own parts that have not
/// left. The backward visits the own keys (hop 0) last. The memory is also a part's share of the
/// queries' gradients, and gradients of keys: those of the part, and, outgoing and incoming, those
/// of the step's earlier parts and of the previous step's later parts. The account has the
/// gradients of the own keys, which the pass makes in its last step.
AttentionMemory memory_of_hops(const std::vector<Hop>& hops, const RowBytes& bytes,
                               int64_t num_parts) {
  const auto at = [&](size_t s) { return s < hops.size() ? hops[s] : Hop{}; };
  const auto keys = [&](const Hop& hop) { return hop.kv * bytes.kv + hop.latents * bytes.latents; };
  const double share = 1.0 / static_cast<double>(num_parts), copied = num_parts > 1 ? 1.0 : 0.0;
  AttentionMemory most;
  const auto add = [&](double forward, double backward) {
    most = fullest(most, {.forward = forward, .backward = backward});
  };
  const Hop own = hops[0], last = hops.back();
  const double own_copies = copied * keys(at(1));
  add(keys(at(1)) + own_copies + copied * share * own.queries * bytes.output * bytes.widening,
      bytes.widening * (share * own.queries * bytes.query + (1 + share) * keys(last)));
  for (size_t s = 1; s < hops.size(); ++s) {
    const Hop now = hops[s], before = s > 1 ? hops[s - 1] : Hop{};
    const bool is_whole = num_parts == 1 && s == 1 && now.queries == own.queries;
    for (int64_t part = 0; part < num_parts; ++part) {
      const double earlier = share * static_cast<double>(part), later = 1 - earlier - share;
      const double arrived =
          keys(now) + (earlier + share) * keys(at(s + 1)) + (s == 1 ? later * own_copies : 0.0);
      const double gradients = (is_whole ? 0.0 : share * now.queries * bytes.query) +
                               (2 * earlier + share - 1) * keys(now) +
                               2 * (1 - earlier) * keys(before);
      add(arrived + share * now.queries * bytes.output * bytes.widening,
          arrived + bytes.widening * gradients);
    }
  }
  return most;
}

bool latents_go_round(const RankGeometry& geometry) {
  return std::ranges::any_of(
      geometry.steps, [](const AttentionStep& step) { return !step.context_latents.empty(); });
}

/// Returns the passes of a rank: one for each wave and each of its pieces.
std::vector<std::vector<Hop>> passes_of(const RankGeometry& geometry) {
  std::vector<std::vector<Hop>> passes;
  for (const AttentionStep& step : geometry.steps) {
    if (step.hop == 0) passes.emplace_back();
    passes.back().push_back(hop_of(step));
  }
  return passes;
}

}  // namespace

AttentionMemory fullest(const AttentionMemory& a, const AttentionMemory& b) {
  return {.forward = std::max(a.forward, b.forward),
          .backward = std::max(a.backward, b.backward),
          .replay = std::max(a.replay, b.replay),
          .inputs = std::max(a.inputs, b.inputs),
          .leaves = std::max(a.leaves, b.leaves),
          .output = std::max(a.output, b.output),
          .outside_rule = std::max(a.outside_rule, b.outside_rule)};
}

AttentionMemory attention_memory(const ParallelPlan& plan, const AttentionShape& shape,
                                 const Packing& padded) {
  if (plan.sequence_size == 1 || padded.num_tokens() == 0) return {};
  return plan.method->memory(plan, shape, padded);
}

HeadsAtHand heads_at_hand(const RankGeometry& geometry, int rank, int64_t tokens_per_rank) {
  HeadsAtHand heads;
  for (const AttentionStep& step : geometry.steps) {
    const double queries = rows_of(step.queries), kv = rows_of(step.keys);
    heads.queries += queries;
    heads.kv += kv;
    heads.wave_queries = std::max(heads.wave_queries, queries);
    heads.wave_kv = std::max(heads.wave_kv, kv);
    for (const TokenSpan& tokens : step.latents) {
      heads.latents += static_cast<double>(tokens.length);
    }
    for (const HeadTokens& keys : step.keys) {
      heads.returning_kv +=
          static_cast<double>(keys.num_heads * foreign_tokens(keys.tokens, rank, tokens_per_rank));
    }
  }
  return heads;
}

AttentionMemory memory_of_exchange(const HeadsAtHand& heads, int head_waves, int num_ranks,
                                   const AttentionShape& shape, int64_t tokens) {
  const RowBytes bytes(shape);
  const double t = static_cast<double>(tokens), w = bytes.widening;
  const double Q = t * static_cast<double>(shape.spec.num_heads) * bytes.query,
               KV = t * static_cast<double>(shape.spec.num_kv_heads) * bytes.kv,
               O = t * static_cast<double>(shape.spec.num_heads) * bytes.output;
  // Data from other ranks, and data to other ranks if the rank copies this data before the send.
  const double others = 1.0 - 1.0 / static_cast<double>(num_ranks);
  const double sent = heads.cuts ? others : 0.0;
  AttentionMemory memory;
  memory.leaves = heads.queries * bytes.output - O;
  memory.output = O;
  if (heads.latents > 0) {
    // From the latents the rank computes keys and values of its own heads, as many bytes as KV.
    const double q = heads.queries * bytes.query, out = heads.queries * bytes.output,
                 L = heads.latents * bytes.latents;
    memory.inputs = q + L - Q;
    memory.forward = std::max({q + L + sent * Q - KV, q + L + out, out + O + others * O - KV}) - O;
    const double base = Q + KV + O + w * (Q + KV);
    const double exchanging = q + L + KV + O + out + sent * O,
                 attending = q + L + KV + out + w * (q + KV),
                 returning = q + L + others * (Q + L) + L / num_ranks;
    memory.backward = std::max({exchanging, attending, returning}) - base;
    memory.replay = Q + q + L + KV + sent * Q + O - base;
    return memory;
  }
  if (head_waves == 1) {
    const double q = heads.queries * bytes.query, kv = heads.kv * bytes.kv,
                 out = heads.queries * bytes.output;
    memory.inputs = q + kv - Q - KV;
    memory.forward = std::max({q + kv + sent * (Q + KV) - O, q + kv + out - O, out + others * O});
    const double base = Q + KV + O + w * (Q + KV);
    const double exchanging = q + kv + O + out + sent * O, attending = q + kv + out + w * (q + kv),
                 returning = q + kv + others * Q + heads.returning_kv * bytes.kv + KV;
    memory.backward = std::max({exchanging, attending, returning}) - base;
    memory.replay = Q + KV + q + kv + sent * (Q + KV) + O - base;
    return memory;
  }
  const double q = heads.wave_queries * bytes.query, kv = heads.wave_kv * bytes.kv,
               out = heads.wave_queries * bytes.output;
  // A wave, the next one in transit, and the returning part of the previous one.
  memory.forward = O + (2 + sent) * (q + kv) + (1 + others) * out;
  if (head_waves <= kMostWavesInFlight) {
    memory.backward = (2 + sent) * (q + kv + out) + w * (q + kv) + (1 + others) * (q + kv);
  } else {
    memory.backward = (2 + sent) * q + out + kv + w * (q + kv);
  }
  return memory;
}

AttentionMemory nothing_beside(const ParallelPlan& /*plan*/, const AttentionShape& /*shape*/,
                               const Packing& /*padded*/) {
  return {};
}

AttentionMemory memory_of_degrees(const ParallelPlan& plan, const AttentionShape& shape,
                                  const Packing& padded) {
  const int64_t tokens = padded.num_tokens() / plan.sequence_size;
  const RowBytes bytes(shape);
  return fullest_rank(plan, [&](int rank) {
    const RankGeometry geometry = plan.method->geometry(plan, shape, padded, rank);
    AttentionMemory memory;
    if (plan.ulysses_size > 1) {
      memory = memory_of_exchange(heads_at_hand(geometry, rank, tokens), plan.head_waves,
                                  plan.ulysses_size, shape, tokens);
    }
    AttentionMemory hops;
    const bool is_whole = shape.spec.window || latents_go_round(geometry);
    for (const std::vector<Hop>& pass : passes_of(geometry)) {
      const int64_t parts = is_whole ? 1 : num_ring_parts(pass[0].kv_heads, shape.cuda);
      if (pass.size() > 1) hops = fullest(hops, memory_of_hops(pass, bytes, parts));
    }
    memory.forward += hops.forward;
    memory.backward += hops.backward;
    // If latents travel, the latents are saved instead of the keys and values computed from the
    // latents.
    if (latents_go_round(geometry)) {
      const double kv = static_cast<double>(tokens * shape.spec.num_kv_heads) * bytes.kv;
      memory.inputs -= kv;
      if (plan.ulysses_size > 1) {
        memory.replay -= kv;
      } else {
        memory.inputs += static_cast<double>(tokens) * bytes.latents;
      }
    }
    return memory;
  });
}

}  // namespace longspan
