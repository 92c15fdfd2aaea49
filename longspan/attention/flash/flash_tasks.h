// Interface between the flash attention driver (torch, threads) and its tile code, which is
// compiled once for each instruction set. Plain C++ on purpose: a template instantiated here with
// AVX-512 could be the copy that the linker keeps for the whole program. T: query tokens, S: key
// tokens, N: query heads, M: kv heads, G = N / M.
#pragma once

#include <stdint.h>

#include "longspan/attention/flash/tile_sizes.h"

namespace longspan::flash {

/// Query tiles of a forward task: packing a key tile costs as much as attending a few rows, so that
/// a small group passes over it with more of its queries.
inline constexpr int64_t query_tiles_of_task(int64_t group) { return group >= 4 ? 2 : 8 / group; }

/// Elements between neighbouring tokens and neighbouring heads; the head dim is contiguous.
struct Strides {
  int64_t token, head;
};

struct Forward {
  const float *q, *k, *v;
  float *out, *lse;  // out[T, N, value_dim] contiguous; lse[N, T] contiguous
  Strides q_strides, k_strides, v_strides;
  int64_t num_tokens, num_heads, num_kv_heads, key_dim, value_dim;
  float scale, softcap;  // softcap 0: none
};

/// A run of queries against a run of keys; query i of [0, q_length) sees key j iff (!causal or j <=
/// i + offset) and j >= i + lower.
struct Task {
  int64_t kv_head;
  int64_t q_begin, q_length;
  int64_t k_begin, k_length;
  int64_t offset;
  int64_t lower;  // kNoLowerEnd, or a little more, where there is none
  bool causal;
  int64_t number = 0;  // in the order in which tasks begin
};

inline constexpr int64_t kNoLowerEnd = -(int64_t{1} << 60);

/// Tasks that run at the same time add to the same gradients, each number in the order of the
/// tasks. The tile code asks for its turn and passes it on.
struct Turns {
  void* self;
  /// Returns when dq's rows of the tile of queries that begins at `query` are this task's to add
  /// to.
  void (*wait_for_queries)(void* self, const Task&, int64_t query);
  /// The task is done with them.
  void (*pass_queries_on)(void* self, const Task&, int64_t query);
  /// The same for the task's rows of dk and dv.
  void (*wait_for_keys)(void* self, const Task&);
  void (*pass_keys_on)(void* self, const Task&);
};

struct Backward {
  const float *q, *k, *v, *dout, *lse, *delta;  // lse and delta [N, T] contiguous
  float *dq, *dk, *dv;  // [T, N, key_dim], [S, M, key_dim], [S, M, value_dim] contiguous; added to
  Strides q_strides, k_strides, v_strides, dout_strides;
  int64_t num_tokens, num_heads, num_kv_heads, key_dim, value_dim;
  float scale, softcap;
  Turns turns;
};

/// The first query of a task that its backward looks at: the first one that sees the first key,
/// rounded down to a tile so that tiles start at the same places.
inline constexpr int64_t first_query(const Task& task) {
  return task.causal && task.offset < 0 ? -task.offset / kQueryTile * kQueryTile : 0;
}

/// Tile code for one instruction set.
struct Tiles {
  /// "portable", "avx2", "avx512": by what the compiler was told.
  const char* instructions;
  /// Floats of scratch that one thread needs (64-byte aligned).
  int64_t (*forward_scratch)(int64_t key_dim, int64_t value_dim, int64_t group);
  int64_t (*backward_scratch)(int64_t key_dim, int64_t value_dim, int64_t group);
  /// At most query_tiles_of_task tiles of queries of all heads of the group, all keys of the task:
  /// writes out and lse.
  void (*forward)(const Forward&, const Task&, float* scratch);
  /// At most kKeyTile keys, all queries of the task, all heads of the group: adds to dq, dk, dv.
  void (*backward)(const Backward&, const Task&, float* scratch);
};

/// Null when the program was built without it.
const Tiles* avx512_tiles();
const Tiles* avx2_tiles();
const Tiles* portable_tiles();

}  // namespace longspan::flash
