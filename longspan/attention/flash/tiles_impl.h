// Tile code of flash attention (FlashAttention-2, arXiv 2307.08691). One .cpp for each instruction
// set includes this file. The .cpp defines INSTRUCTIONS (the set's name), LANES (floats of a vector
// register), PANEL (vector registers in a row of a micro-tile) and ROWS (rows of a micro-tile). The
// code uses the compiler's vector extension. All code is in an unnamed namespace and calls no
// library template (flash_tasks.h gives the reason). G: query heads of one kv head, K: elements of
// a head of queries and keys, V: elements of a head of values and outputs, BQ, BK: sizes of a query
// tile and a key tile.
#pragma once

#include "longspan/attention/flash/flash_tasks.h"
#include "longspan/cpu/tile_products.h"
#include "longspan/cpu/tile_vectors.h"

namespace longspan::flash {
namespace {

using namespace tiles;

/// Replaces scores by cap tanh(scores / cap).
inline void cap_row(float* scores, int64_t padded, float cap) {
  const Vector inverse = splat(1.0f / cap), limit = splat(cap);
  for (int64_t j = 0; j < padded; j += LANES)
    store(scores + j, limit * tanh_of(load(scores + j) * inverse));
}

/// Query `query` of a task sees a range of the keys [key, key + count). Returns the end of this
/// range, relative to `key`. The range begins at hidden().
inline int64_t visible(const Task& task, int64_t query, int64_t key, int64_t count) {
  if (!task.causal) return count;
  return larger(0, smaller(count, query + task.offset - key + 1));
}

/// Returns the number of keys in [key, key + count) before the query's lower end.
inline int64_t hidden(const Task& task, int64_t query, int64_t key, int64_t count) {
  return larger(0, smaller(count, query + task.lower - key));
}

/// Returns the end of the keys that any query before `query_end` sees.
inline int64_t key_limit(const Task& task, int64_t query_end) {
  if (!task.causal) return task.k_length;
  return larger(0, smaller(task.k_length, query_end + task.offset));
}

int64_t forward_scratch(int64_t key_dim, int64_t value_dim, int64_t group) {
  return group * query_tiles_of_task(group) * kForwardTile * (key_dim + value_dim + 2) +
         kForwardTile * kScoreStride + kKeyTile * (key_dim + value_dim) + 64;
}

/// Returns the largest of `first` and a row of scores. Computes four independent maxima and
/// combines the four at the end, because each step of one maximum depends on the previous step.
inline float largest_of(const float* scores, int64_t padded, float first) {
  Vector largest[4];
#pragma GCC unroll 4
  for (Vector& one : largest) one = splat(first);
  int64_t j = 0;
  for (; j + 4 * LANES <= padded; j += 4 * LANES) {
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) largest[i] = larger_of(load(scores + j + i * LANES), largest[i]);
  }
  for (; j < padded; j += LANES) largest[0] = larger_of(load(scores + j), largest[0]);
  return max_of(larger_of(larger_of(largest[0], largest[1]), larger_of(largest[2], largest[3])));
}

/// Replaces a row of scores (in units of log 2) by exp2(score - maximum). Returns the sum of the
/// exponentials.
inline float exponentiate(float* scores, int64_t padded, float maximum) {
  const Vector shift = splat(maximum);
  Vector sums[2]{};
  const auto exponentiate_vector = [&](int64_t j, Vector& sum) {
    const Vector p = exp2_of(load(scores + j) - shift);
    store(scores + j, p);
    sum += p;
  };
  int64_t j = 0;
  for (; j + 2 * LANES <= padded; j += 2 * LANES) {
    exponentiate_vector(j, sums[0]);
    exponentiate_vector(j + LANES, sums[1]);
  }
  if (j < padded) exponentiate_vector(j, sums[0]);
  return sum_of(sums[0] + sums[1]);
}

/// The range [begin, end) of a tile's keys that a query sees.
struct Seen {
  int64_t begin, end;
};

/// Replaces at most LANES rows of scores (in units of log 2) by probabilities relative to running
/// maxima. `factors`: receives the factors of the earlier sums. Updates maxima and totals of all
/// rows in one vector, because each step of one row depends on the previous step.
inline void softmax_rows(int64_t rows, const Seen* seen, float* scores, int64_t padded, float cap,
                         float* maxima, float* totals, float* factors) {
  const Vector before = load(maxima);
  for (int64_t i = 0; i < rows; ++i) {
    float* row = scores + i * kScoreStride;
    if (seen[i].end <= seen[i].begin) continue;
    if (cap > 0) cap_row(row, padded, cap);
    for (int64_t j = 0; j < seen[i].begin; ++j) row[j] = kMinusInfinity;
    for (int64_t j = seen[i].end; j < padded; ++j) row[j] = kMinusInfinity;
    maxima[i] = largest_of(row, padded, maxima[i]);
  }
  // Both maxima are -inf if the query has seen no key.
  const Vector now = load(maxima), factor = before == now ? splat(1.0f) : exp2_of(before - now);
  store(factors, factor);
  store(totals, load(totals) * factor);
  for (int64_t i = 0; i < rows; ++i) {
    float* row = scores + i * kScoreStride;
    if (seen[i].end > seen[i].begin) {
      totals[i] += exponentiate(row, padded, maxima[i]);
    } else {
      for (int64_t j = 0; j < padded; ++j) row[j] = 0;
    }
  }
}

void forward(const Forward& f, const Task& task, float* scratch) {
  const int64_t K = f.key_dim, V = f.value_dim, group = f.num_heads / f.num_kv_heads;
  // A part is one query tile of one head.
  const int64_t num_tiles = (task.q_length + kForwardTile - 1) / kForwardTile;
  const int64_t num_parts = group * num_tiles, query_size = kForwardTile * K,
                sum_size = kForwardTile * V;
  float* queries = scratch;
  float* sums = queries + num_parts * query_size;
  float* scores = sums + num_parts * sum_size;
  float* keys = scores + kForwardTile * kScoreStride;  // K x BK in panels
  float* values = keys + kKeyTile * K;                 // BK x V in panels
  float* maxima = values + kKeyTile * V;
  float* totals = maxima + num_parts * kForwardTile;
  const int64_t first_head = task.kv_head * group;
  const auto rows_of = [&](int64_t tile) {
    return smaller(kForwardTile, task.q_length - tile * kForwardTile);
  };

  for (int64_t part = 0; part < num_parts; ++part) {
    const int64_t tile = part / group, head = first_head + part % group, rows = rows_of(tile);
    pack(f.q + (task.q_begin + tile * kForwardTile) * f.q_strides.token + head * f.q_strides.head,
         f.q_strides.token, rows, K, f.scale * kLog2E, queries + part * query_size);
    for (int64_t i = 0; i < rows * V; ++i) sums[part * sum_size + i] = 0;
    for (int64_t i = 0; i < kForwardTile; ++i) {
      maxima[part * kForwardTile + i] = kMinusInfinity;
      totals[part * kForwardTile + i] = 0;
    }
  }

  const int64_t limit = key_limit(task, task.q_length);
  // Key tiles begin at multiples of kKeyTile in the block for every task, so that a query's sums do
  // not depend on the division of queries into tasks.
  for (int64_t key = larger(0, task.lower) / kKeyTile * kKeyTile; key < limit; key += kKeyTile) {
    const int64_t count = smaller(kKeyTile, limit - key), padded = round_up(count, LANES);
    pack_transposed(
        f.k + (task.k_begin + key) * f.k_strides.token + task.kv_head * f.k_strides.head,
        f.k_strides.token, count, K, keys);
    pack_panels(f.v + (task.k_begin + key) * f.v_strides.token + task.kv_head * f.v_strides.head,
                f.v_strides.token, count, V, 1.0f, values, kKeyTile);
    for (int64_t part = 0; part < num_parts; ++part) {
      const int64_t query = part / group * kForwardTile, rows = rows_of(part / group);
      if (key >= key_limit(task, query + rows) || key + count <= query + task.lower) continue;
      float* out = sums + part * sum_size;
      // Keys from `end` on are hidden from all queries of the tile.
      const int64_t end = visible(task, query + rows - 1, key, count),
                    width = smaller(padded, round_up(end, kPanel));
      multiply(rows, width, K, queries + part * query_size, K, 1, keys, K, scores, kScoreStride,
               Fresh{});
      float factors[kForwardTile];
      for (int64_t i = 0; i < rows; i += LANES) {
        const int64_t some = smaller(LANES, rows - i), at = part * kForwardTile + i;
        Seen seen[LANES];
        for (int64_t r = 0; r < some; ++r)
          seen[r] = {hidden(task, query + i + r, key, end), visible(task, query + i + r, key, end)};
        softmax_rows(some, seen, scores + i * kScoreStride, width, f.softcap * kLog2E, maxima + at,
                     totals + at, factors + i);
      }
      multiply(rows, V, end, scores, kScoreStride, 1, values, kKeyTile, out, V,
               AddedToScaled{factors});
    }
  }

  for (int64_t part = 0; part < num_parts; ++part) {
    const int64_t query = task.q_begin + part / group * kForwardTile;
    const int64_t head = first_head + part % group, rows = rows_of(part / group);
    for (int64_t i = 0; i < rows; ++i) {
      const float total = totals[part * kForwardTile + i];
      const float inverse = total != 0 ? 1.0f / total : 0.0f;
      const float* from = sums + part * sum_size + i * V;
      float* to = f.out + ((query + i) * f.num_heads + head) * V;
      for (int64_t h = 0; h < V; h += LANES) store(to + h, load(from + h) * inverse);
      f.lse[head * f.num_tokens + query + i] =
          total != 0 ? maxima[part * kForwardTile + i] * kLn2 + __builtin_logf(total)
                     : kMinusInfinity;
    }
  }
}

int64_t backward_scratch(int64_t key_dim, int64_t value_dim, int64_t /*group*/) {
  return backward_floats(key_dim, value_dim);
}

/// For one row of a tile: replaces scores by probabilities, and gradients of probabilities by
/// gradients of scores. Masked elements become 0. `unseen`, `seen`: begin and end of the visible
/// keys. `cap`: softcap of scores, in units of log 2; 0: none.
inline void backward_row(float* scores, float* gradients, int64_t unseen, int64_t seen,
                         int64_t padded, float lse, float delta, float cap) {
  if (cap > 0) {
    // d (cap tanh(s / cap)) / d s = 1 - tanh^2, which is applied before the mask.
    const Vector inverse = splat(1.0f / cap), limit = splat(cap), one = splat(1.0f);
    for (int64_t j = 0; j < padded; j += LANES) {
      const Vector t = tanh_of(load(scores + j) * inverse), slope = one - t * t;
      store(scores + j, limit * t);
      store(gradients + j, (load(gradients + j) - splat(delta)) * slope);
    }
    delta = 0;
  }
  for (int64_t j = 0; j < unseen; ++j) scores[j] = kMinusInfinity;
  for (int64_t j = seen; j < padded; ++j) scores[j] = kMinusInfinity;
  // A query that saw no key has lse -inf and only scores of -inf. The difference of the two must
  // not be NaN.
  const Vector shift = splat(lse == kMinusInfinity ? 0.0f : lse * kLog2E), offset = splat(delta);
  for (int64_t j = 0; j < padded; j += LANES) {
    const Vector p = exp2_of(load(scores + j) - shift);
    store(scores + j, p);
    store(gradients + j, p * (load(gradients + j) - offset));
  }
}

void backward(const Backward& b, const Task& task, float* scratch) {
  const int64_t K = b.key_dim, V = b.value_dim, group = b.num_heads / b.num_kv_heads;
  const int64_t count = task.k_length, padded = round_up(count, LANES);
  float* keys_transposed = scratch;                           // K x BK in panels
  float* values_transposed = keys_transposed + kKeyTile * K;  // V x BK in panels
  float* keys = values_transposed + kKeyTile * V;             // BK x K in panels, times scale
  float* dkeys = keys + kKeyTile * K;
  float* dvalues = dkeys + kKeyTile * K;
  float* queries = dvalues + kKeyTile * V;  // BQ x K, times scale and log2 e
  float* query_panels = queries + kQueryTile * K;
  float* douts = query_panels + kQueryTile * K;  // BQ x V
  float* dout_panels = douts + kQueryTile * V;
  float* scores = dout_panels + kQueryTile * V;  // BQ x BK
  float* gradients = scores + kQueryTile * kScoreStride;

  const float* k = b.k + task.k_begin * b.k_strides.token + task.kv_head * b.k_strides.head;
  const float* v = b.v + task.k_begin * b.v_strides.token + task.kv_head * b.v_strides.head;
  pack_transposed(k, b.k_strides.token, count, K, keys_transposed);
  pack_transposed(v, b.v_strides.token, count, V, values_transposed);
  pack_panels(k, b.k_strides.token, count, K, b.scale, keys, kKeyTile);
  for (int64_t i = 0; i < count * K; ++i) dkeys[i] = 0;
  for (int64_t i = 0; i < count * V; ++i) dvalues[i] = 0;

  for (int64_t tile = first_query(task); tile < task.q_length; tile += kQueryTile) {
    const int64_t tile_end = smaller(tile + kQueryTile, task.q_length);
    // If some queries do not see all keys, a step has half as many queries, which computes fewer
    // masked pairs.
    const int64_t step = visible(task, tile, 0, count) < count ? kQueryTile / 2 : kQueryTile;
    for (int64_t query = tile; query < tile_end; query += step) {
      const int64_t rows = smaller(step, tile_end - query), token = task.q_begin + query;
      const int64_t seen = visible(task, query + rows - 1, 0, count),
                    width = smaller(padded, round_up(seen, kPanel));
      for (int64_t head = task.kv_head * group; head < (task.kv_head + 1) * group; ++head) {
        const float* q = b.q + token * b.q_strides.token + head * b.q_strides.head;
        const float* dout = b.dout + token * b.dout_strides.token + head * b.dout_strides.head;
        pack(q, b.q_strides.token, rows, K, b.scale * kLog2E, queries);
        pack_panels(queries, K, rows, K, 1.0f, query_panels, kQueryTile);
        pack(dout, b.dout_strides.token, rows, V, 1.0f, douts);
        pack_panels(douts, V, rows, V, 1.0f, dout_panels, kQueryTile);
        multiply(rows, width, K, queries, K, 1, keys_transposed, K, scores, kScoreStride, Fresh{});
        multiply(rows, width, V, douts, V, 1, values_transposed, V, gradients, kScoreStride,
                 Fresh{});
        const float* lse = b.lse + head * b.num_tokens + token;
        const float* delta = b.delta + head * b.num_tokens + token;
        for (int64_t i = 0; i < rows; ++i)
          backward_row(scores + i * kScoreStride, gradients + i * kScoreStride,
                       hidden(task, query + i, 0, seen), visible(task, query + i, 0, seen), width,
                       lse[i], delta[i], b.softcap * kLog2E);
        multiply(seen, V, rows, scores, 1, kScoreStride, dout_panels, kQueryTile, dvalues, V,
                 Added{});
        multiply(seen, K, rows, gradients, 1, kScoreStride, query_panels, kQueryTile, dkeys, K,
                 Added{});
        if (query == tile && head == task.kv_head * group)
          b.turns.wait_for_queries(b.turns.self, task, tile);
        multiply(rows, K, seen, gradients, kScoreStride, 1, keys, kKeyTile,
                 b.dq + (token * b.num_heads + head) * K, b.num_heads * K, Added{});
      }
    }
    b.turns.pass_queries_on(b.turns.self, task, tile);
  }

  b.turns.wait_for_keys(b.turns.self, task);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t head = (task.k_begin + i) * b.num_kv_heads + task.kv_head;
    float *dk = b.dk + head * K, *dv = b.dv + head * V;
    for (int64_t h = 0; h < K; h += LANES) {
      store(dk + h, load(dk + h) + load(dkeys + i * K + h) * kLn2);
    }
    for (int64_t h = 0; h < V; h += LANES) store(dv + h, load(dv + h) + load(dvalues + i * V + h));
  }
  b.turns.pass_keys_on(b.turns.self, task);
}

constexpr Tiles kTiles{INSTRUCTIONS, forward_scratch, backward_scratch, forward, backward};

}  // namespace
}  // namespace longspan::flash
