// Tile code of flash attention (FlashAttention-2, arXiv 2307.08691), included by one .cpp for each
// instruction set, which defines INSTRUCTIONS (its name), LANES (floats of a vector register),
// PANEL (registers of a row of a micro-tile) and ROWS (its rows). Written on the compiler's vector
// extension. Everything is in an unnamed namespace and calls no library template. G: query heads of
// one kv head, H: numbers in a head, K: those of queries and keys, V: those of values and outputs,
// BQ, BK: query and key tile.
#pragma once

#include "longspan/attention/flash/flash_tasks.h"

namespace longspan::flash {
namespace {

typedef float Vector __attribute__((vector_size(LANES * 4)));
typedef int32_t IntVector __attribute__((vector_size(LANES * 4)));
typedef float LooseVector __attribute__((vector_size(LANES * 4), aligned(4), may_alias));

constexpr float kLog2E = 1.4426950408889634f;
constexpr float kLn2 = 0.6931471805599453f;
constexpr float kMinusInfinity = -__builtin_inff();

inline Vector load(const float* p) { return *reinterpret_cast<const LooseVector*>(p); }
inline void store(float* p, Vector x) { *reinterpret_cast<LooseVector*>(p) = x; }
inline Vector splat(float x) { return Vector{} + x; }
inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
inline int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }
inline int64_t round_up(int64_t x) { return (x + LANES - 1) / LANES * LANES; }

/// 2^x for x <= 0; exactly 0 below 2^-126. Relative error under 2 ulp.
inline Vector exp2_of(Vector x) {
  const Vector magic = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to the nearest integer
  const Vector floor_at = splat(-126.0f);
  const IntVector vanishes = x < floor_at;
  x = vanishes ? floor_at : x;
  const Vector shifted = x + magic;
  const Vector f = x - (shifted - magic);
  Vector p = splat(1.5252734e-5f);
  p = p * f + splat(1.5403530e-4f);
  p = p * f + splat(1.3333558e-3f);
  p = p * f + splat(9.6181291e-3f);
  p = p * f + splat(5.5504109e-2f);
  p = p * f + splat(2.4022651e-1f);
  p = p * f + splat(6.9314718e-1f);
  p = p * f + splat(1.0f);
  const Vector power = (Vector)((IntVector)p + ((IntVector)shifted << 23));
  return vanishes ? Vector{} : power;
}

/// x with its lanes rotated by `step`.
inline Vector rotate(Vector x, int step) {
  IntVector from{};
#pragma GCC unroll 16
  for (int i = 0; i < LANES; ++i) from[i] = (i + step) % LANES;
  return __builtin_shuffle(x, from);
}

inline float sum_of(Vector x) {
#pragma GCC unroll 4
  for (int step = LANES / 2; step > 0; step /= 2) x += rotate(x, step);
  return x[0];
}

inline float max_of(Vector x) {
#pragma GCC unroll 4
  for (int step = LANES / 2; step > 0; step /= 2) {
    const Vector other = rotate(x, step);
    x = other > x ? other : x;
  }
  return x[0];
}

/// c[R x P*LANES] (+)= a (R x depth, element (i, k) at a[i * a_row + k * a_depth]) times b[depth x
/// P*LANES].
template <int R, int P>
inline void micro_tile(int64_t depth, const float* a, int64_t a_row, int64_t a_depth,
                       const float* b, int64_t ldb, float* c, int64_t ldc, bool accumulate) {
  Vector sums[R][P];
#pragma GCC unroll 8
  for (int i = 0; i < R; ++i)
#pragma GCC unroll 4
    for (int j = 0; j < P; ++j) sums[i][j] = Vector{};
  for (int64_t k = 0; k < depth; ++k) {
    Vector row[P];
#pragma GCC unroll 4
    for (int j = 0; j < P; ++j) row[j] = load(b + k * ldb + j * LANES);
#pragma GCC unroll 8
    for (int i = 0; i < R; ++i) {
      const Vector x = splat(a[i * a_row + k * a_depth]);
#pragma GCC unroll 4
      for (int j = 0; j < P; ++j) sums[i][j] += x * row[j];
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < R; ++i)
#pragma GCC unroll 4
    for (int j = 0; j < P; ++j) {
      float* to = c + i * ldc + j * LANES;
      store(to, accumulate ? load(to) + sums[i][j] : sums[i][j]);
    }
}

template <int P>
inline void panel(int64_t rows, int64_t depth, const float* a, int64_t a_row, int64_t a_depth,
                  const float* b, int64_t ldb, float* c, int64_t ldc, bool accumulate) {
  int64_t i = 0;
  for (; i + ROWS <= rows; i += ROWS)
    micro_tile<ROWS, P>(depth, a + i * a_row, a_row, a_depth, b, ldb, c + i * ldc, ldc, accumulate);
  for (; i < rows; ++i)
    micro_tile<1, P>(depth, a + i * a_row, a_row, a_depth, b, ldb, c + i * ldc, ldc, accumulate);
}

/// c[rows x columns] (+)= a[rows x depth] b[depth x columns]; columns a multiple of LANES.
inline void multiply(int64_t rows, int64_t columns, int64_t depth, const float* a, int64_t a_row,
                     int64_t a_depth, const float* b, int64_t ldb, float* c, int64_t ldc,
                     bool accumulate) {
  int64_t j = 0;
  for (; j + PANEL * LANES <= columns; j += PANEL * LANES)
    panel<PANEL>(rows, depth, a, a_row, a_depth, b + j, ldb, c + j, ldc, accumulate);
  for (; j + 2 * LANES <= columns; j += 2 * LANES)
    panel<2>(rows, depth, a, a_row, a_depth, b + j, ldb, c + j, ldc, accumulate);
  for (; j < columns; j += LANES)
    panel<1>(rows, depth, a, a_row, a_depth, b + j, ldb, c + j, ldc, accumulate);
}

/// rows x H at `stride` -> contiguous, times factor.
inline void pack(const float* from, int64_t stride, int64_t rows, int64_t head_dim, float factor,
                 float* to) {
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t h = 0; h < head_dim; h += LANES)
      store(to + i * head_dim + h, load(from + i * stride + h) * factor);
}

/// rows x H at `stride` -> H x BK, zero past the last row up to a whole vector.
inline void pack_transposed(const float* from, int64_t stride, int64_t rows, int64_t head_dim,
                            float* to) {
  const int64_t padded = round_up(rows);
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t h = 0; h < head_dim; ++h) to[h * kKeyTile + i] = from[i * stride + h];
  for (int64_t h = 0; h < head_dim; ++h)
    for (int64_t i = rows; i < padded; ++i) to[h * kKeyTile + i] = 0;
}

/// tanh x to 2 ulp or so: near 0 by a polynomial (Cephes' tanhf), else by 2^x.
inline Vector tanh_of(Vector x) {
  const IntVector negative = x < Vector{};
  const Vector size = negative ? -x : x, square = x * x;
  Vector p = splat(-5.70498872745e-3f);
  p = p * square + splat(2.06390887954e-2f);
  p = p * square + splat(-5.37397155531e-2f);
  p = p * square + splat(1.33314422036e-1f);
  p = p * square + splat(-3.33332819422e-1f);
  p = p * square * x + x;
  const Vector power = exp2_of(size * splat(-2.0f * kLog2E));
  const Vector far = (splat(1.0f) - power) / (splat(1.0f) + power);
  return size < splat(0.625f) ? p : (negative ? -far : far);
}

/// Scores -> cap tanh(scores / cap).
inline void cap_row(float* scores, int64_t padded, float cap) {
  const Vector inverse = splat(1.0f / cap), limit = splat(cap);
  for (int64_t j = 0; j < padded; j += LANES)
    store(scores + j, limit * tanh_of(load(scores + j) * inverse));
}

/// How many keys of [key, key + count), the first ones, query `query` of a task sees, less those
/// that hidden() counts.
inline int64_t visible(const Task& task, int64_t query, int64_t key, int64_t count) {
  if (!task.causal) return count;
  return larger(0, smaller(count, query + task.offset - key + 1));
}

/// How many of them, the first ones, are before the query's lower end.
inline int64_t hidden(const Task& task, int64_t query, int64_t key, int64_t count) {
  return larger(0, smaller(count, query + task.lower - key));
}

/// Keys that any of the queries before `query_end` sees.
inline int64_t key_limit(const Task& task, int64_t query_end) {
  if (!task.causal) return task.k_length;
  return larger(0, smaller(task.k_length, query_end + task.offset));
}

int64_t forward_scratch(int64_t key_dim, int64_t value_dim, int64_t group) {
  return group * query_tiles_of_task(group) * kQueryTile * (key_dim + value_dim + 2) +
         kQueryTile * kKeyTile + kKeyTile * (key_dim + value_dim) + 64;
}

/// Turns a row of scores (in units of log 2) into probabilities relative to the running maximum;
/// rescales what was summed.
inline void softmax_row(float* scores, int64_t unseen, int64_t seen, int64_t padded, float* maximum,
                        float* total, float* out, int64_t head_dim) {
  for (int64_t j = 0; j < unseen; ++j) scores[j] = kMinusInfinity;
  for (int64_t j = seen; j < padded; ++j) scores[j] = kMinusInfinity;
  Vector largest = splat(*maximum);
  for (int64_t j = 0; j < padded; j += LANES) {
    const Vector s = load(scores + j);
    largest = s > largest ? s : largest;
  }
  const float new_maximum = max_of(largest);
  if (new_maximum > *maximum) {
    const float keep = *total == 0 ? 0.0f : exp2_of(splat(*maximum - new_maximum))[0];
    *total *= keep;
    for (int64_t h = 0; h < head_dim; h += LANES) store(out + h, load(out + h) * keep);
    *maximum = new_maximum;
  }
  const Vector shift = splat(new_maximum);
  Vector sum{};
  for (int64_t j = 0; j < padded; j += LANES) {
    const Vector p = exp2_of(load(scores + j) - shift);
    store(scores + j, p);
    sum += p;
  }
  *total += sum_of(sum);
}

void forward(const Forward& f, const Task& task, float* scratch) {
  const int64_t K = f.key_dim, V = f.value_dim, group = f.num_heads / f.num_kv_heads;
  // A part is a tile of queries of one head.
  const int64_t num_tiles = (task.q_length + kQueryTile - 1) / kQueryTile;
  const int64_t num_parts = group * num_tiles, query_size = kQueryTile * K,
                sum_size = kQueryTile * V;
  float* queries = scratch;
  float* sums = queries + num_parts * query_size;
  float* scores = sums + num_parts * sum_size;
  float* keys = scores + kQueryTile * kKeyTile;  // K x BK
  float* values = keys + kKeyTile * K;           // BK x V
  float* maxima = values + kKeyTile * V;
  float* totals = maxima + num_parts * kQueryTile;
  const int64_t first_head = task.kv_head * group;
  const auto rows_of = [&](int64_t tile) {
    return smaller(kQueryTile, task.q_length - tile * kQueryTile);
  };

  for (int64_t part = 0; part < num_parts; ++part) {
    const int64_t tile = part / group, head = first_head + part % group, rows = rows_of(tile);
    pack(f.q + (task.q_begin + tile * kQueryTile) * f.q_strides.token + head * f.q_strides.head,
         f.q_strides.token, rows, K, f.scale * kLog2E, queries + part * query_size);
    for (int64_t i = 0; i < rows * V; ++i) sums[part * sum_size + i] = 0;
    for (int64_t i = 0; i < rows; ++i) {
      maxima[part * kQueryTile + i] = kMinusInfinity;
      totals[part * kQueryTile + i] = 0;
    }
  }

  const int64_t limit = key_limit(task, task.q_length);
  for (int64_t key = larger(0, task.lower); key < limit; key += kKeyTile) {
    const int64_t count = smaller(kKeyTile, limit - key), padded = round_up(count);
    pack_transposed(
        f.k + (task.k_begin + key) * f.k_strides.token + task.kv_head * f.k_strides.head,
        f.k_strides.token, count, K, keys);
    pack(f.v + (task.k_begin + key) * f.v_strides.token + task.kv_head * f.v_strides.head,
         f.v_strides.token, count, V, 1.0f, values);
    for (int64_t part = 0; part < num_parts; ++part) {
      const int64_t query = part / group * kQueryTile, rows = rows_of(part / group);
      if (key >= key_limit(task, query + rows) || key + count <= query + task.lower) continue;
      float* out = sums + part * sum_size;
      multiply(rows, padded, K, queries + part * query_size, K, 1, keys, kKeyTile, scores, kKeyTile,
               false);
      for (int64_t i = 0; i < rows; ++i) {
        const int64_t seen = visible(task, query + i, key, count),
                      unseen = hidden(task, query + i, key, count);
        float* row = scores + i * kKeyTile;
        if (seen <= unseen) {
          for (int64_t j = 0; j < padded; ++j) row[j] = 0;
        } else {
          if (f.softcap > 0) cap_row(row, padded, f.softcap * kLog2E);
          softmax_row(row, unseen, seen, padded, maxima + part * kQueryTile + i,
                      totals + part * kQueryTile + i, out + i * V, V);
        }
      }
      multiply(rows, V, count, scores, kKeyTile, 1, values, V, out, V, true);
    }
  }

  for (int64_t part = 0; part < num_parts; ++part) {
    const int64_t query = task.q_begin + part / group * kQueryTile;
    const int64_t head = first_head + part % group, rows = rows_of(part / group);
    for (int64_t i = 0; i < rows; ++i) {
      const float total = totals[part * kQueryTile + i];
      const float inverse = total > 0 ? 1.0f / total : 0.0f;
      const float* from = sums + part * sum_size + i * V;
      float* to = f.out + ((query + i) * f.num_heads + head) * V;
      for (int64_t h = 0; h < V; h += LANES) store(to + h, load(from + h) * inverse);
      f.lse[head * f.num_tokens + query + i] =
          total > 0 ? maxima[part * kQueryTile + i] * kLn2 + __builtin_logf(total) : kMinusInfinity;
    }
  }
}

int64_t backward_scratch(int64_t key_dim, int64_t value_dim, int64_t /*group*/) {
  return kKeyTile * (3 * key_dim + 2 * value_dim) + kQueryTile * (key_dim + value_dim) +
         2 * kQueryTile * kKeyTile + 64;
}

/// scores -> probabilities, dprobabilities -> dscores, for a tile; masked places become 0. `cap`:
/// of scores, in units of log 2; 0: none.
inline void backward_row(float* scores, float* gradients, int64_t unseen, int64_t seen,
                         int64_t padded, float lse, float delta, float cap) {
  if (cap > 0) {
    // d (cap tanh(s / cap)) / d s = 1 - tanh^2, which is taken in before places are masked.
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
  // A query that saw no key at all has lse -inf; its scores are all -inf too, and their difference
  // must not be NaN.
  const Vector shift = splat(lse == kMinusInfinity ? 0.0f : lse * kLog2E), offset = splat(delta);
  for (int64_t j = 0; j < padded; j += LANES) {
    const Vector p = exp2_of(load(scores + j) - shift);
    store(scores + j, p);
    store(gradients + j, p * (load(gradients + j) - offset));
  }
}

void backward(const Backward& b, const Task& task, float* scratch) {
  const int64_t K = b.key_dim, V = b.value_dim, group = b.num_heads / b.num_kv_heads;
  const int64_t count = task.k_length, padded = round_up(count);
  float* keys_transposed = scratch;                           // K x BK
  float* values_transposed = keys_transposed + kKeyTile * K;  // V x BK
  float* keys = values_transposed + kKeyTile * V;             // BK x K, times scale
  float* dkeys = keys + kKeyTile * K;
  float* dvalues = dkeys + kKeyTile * K;
  float* queries = dvalues + kKeyTile * V;  // BQ x K, times scale and log2 e
  float* douts = queries + kQueryTile * K;
  float* scores = douts + kQueryTile * V;  // BQ x BK
  float* gradients = scores + kQueryTile * kKeyTile;

  const float* k = b.k + task.k_begin * b.k_strides.token + task.kv_head * b.k_strides.head;
  const float* v = b.v + task.k_begin * b.v_strides.token + task.kv_head * b.v_strides.head;
  pack_transposed(k, b.k_strides.token, count, K, keys_transposed);
  pack_transposed(v, b.v_strides.token, count, V, values_transposed);
  pack(k, b.k_strides.token, count, K, b.scale, keys);
  for (int64_t i = 0; i < count * K; ++i) dkeys[i] = 0;
  for (int64_t i = 0; i < count * V; ++i) dvalues[i] = 0;

  for (int64_t query = first_query(task); query < task.q_length; query += kQueryTile) {
    const int64_t rows = smaller(kQueryTile, task.q_length - query), token = task.q_begin + query;
    for (int64_t head = task.kv_head * group; head < (task.kv_head + 1) * group; ++head) {
      pack(b.q + token * b.q_strides.token + head * b.q_strides.head, b.q_strides.token, rows, K,
           b.scale * kLog2E, queries);
      pack(b.dout + token * b.dout_strides.token + head * b.dout_strides.head, b.dout_strides.token,
           rows, V, 1.0f, douts);
      multiply(rows, padded, K, queries, K, 1, keys_transposed, kKeyTile, scores, kKeyTile, false);
      multiply(rows, padded, V, douts, V, 1, values_transposed, kKeyTile, gradients, kKeyTile,
               false);
      const float* lse = b.lse + head * b.num_tokens + token;
      const float* delta = b.delta + head * b.num_tokens + token;
      for (int64_t i = 0; i < rows; ++i)
        backward_row(scores + i * kKeyTile, gradients + i * kKeyTile,
                     hidden(task, query + i, 0, count), visible(task, query + i, 0, count), padded,
                     lse[i], delta[i], b.softcap * kLog2E);
      multiply(count, V, rows, scores, 1, kKeyTile, douts, V, dvalues, V, true);
      multiply(count, K, rows, gradients, 1, kKeyTile, queries, K, dkeys, K, true);
      if (head == task.kv_head * group) b.turns.wait_for_queries(b.turns.self, task, query);
      multiply(rows, K, count, gradients, kKeyTile, 1, keys, K,
               b.dq + (token * b.num_heads + head) * K, b.num_heads * K, true);
    }
    b.turns.pass_queries_on(b.turns.self, task, query);
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
