// Interface between the flash attention driver (torch, threads) and its tile code. The tile code is
// compiled once for each instruction set. The tile code must not instantiate library templates: the
// linker could keep an instance compiled with AVX-512 for the whole program. T: query tokens, S:
// key tokens, N: query heads, M: kv heads, G = N / M.
#pragma once

#include <stdint.h>

#include "longspan/attention/flash/tile_sizes.h"

namespace longspan::flash {

/// Returns the number of query tiles of a forward task. Packing a key tile costs as much as the
/// attention of a few query rows, so a task with few heads has more query tiles. `group`: query
/// heads per kv head.
inline constexpr int64_t query_tiles_of_task(int64_t group) { return group >= 4 ? 2 : 8 / group; }

/// Elements between neighbouring tokens and between neighbouring heads. The head dim is contiguous.
struct Strides {
  int64_t token, head;
};

struct Forward {
  const float *q, *k, *v;
  float *out, *lse;  // out [T, N, value_dim] contiguous, lse [N, T] contiguous
  Strides q_strides, k_strides, v_strides;
  int64_t num_tokens, num_heads, num_kv_heads, key_dim, value_dim;
  float scale, softcap;  // softcap 0: none
};

/// Attention of consecutive queries over consecutive keys. Query i of [0, q_length) sees key j iff
/// (!causal or j <= i + offset) and j >= i + lower.
struct Task {
  int64_t kv_head;
  int64_t q_begin, q_length;
  int64_t k_begin, k_length;
  int64_t offset;
  int64_t lower;  // near kNoLowerEnd if there is no lower end
  bool causal;
  int64_t number = 0;  // index in the order in which tasks begin
};

inline constexpr int64_t kNoLowerEnd = -(int64_t{1} << 60);

/// Callbacks that order the additions of concurrent tasks to shared gradients. The tile code waits
/// for the task's turn, adds to the gradients, and passes the turn to the next task.
struct Turns {
  void* self;
  /// Blocks until this task may add to dq's rows of the query tile that begins at `query`.
  void (*wait_for_queries)(void* self, const Task&, int64_t query);
  /// Allows the next task to add to these rows.
  void (*pass_queries_on)(void* self, const Task&, int64_t query);
  /// The same callbacks for the task's rows of dk and dv.
  void (*wait_for_keys)(void* self, const Task&);
  void (*pass_keys_on)(void* self, const Task&);
};

struct Backward {
  const float *q, *k, *v, *dout, *lse, *delta;  // lse and delta [N, T] contiguous
  float *dq, *dk, *dv;  // [T, N, key_dim], [S, M, key_dim], [S, M, value_dim], contiguous; added to
  Strides q_strides, k_strides, v_strides, dout_strides;
  int64_t num_tokens, num_heads, num_kv_heads, key_dim, value_dim;
  float scale, softcap;
  Turns turns;
};

/// Returns the first query that the backward of a task processes: the first query that sees the
/// task's first key, rounded down to a multiple of kQueryTile.
inline constexpr int64_t first_query(const Task& task) {
  return task.causal && task.offset < 0 ? -task.offset / kQueryTile * kQueryTile : 0;
}

/// Tile code for one instruction set.
struct Tiles {
  /// The instruction set of the compiled code: "portable", "avx2" or "avx512".
  const char* instructions;
  /// Return the size of one thread's scratch, in floats. Scratch must be 64-byte aligned.
  int64_t (*forward_scratch)(int64_t key_dim, int64_t value_dim, int64_t group);
  int64_t (*backward_scratch)(int64_t key_dim, int64_t value_dim, int64_t group);
  /// Writes out and lse of a task: at most query_tiles_of_task() query tiles, all heads of the
  /// group, all keys of the task.
  void (*forward)(const Forward&, const Task&, float* scratch);
  /// Adds to dq, dk and dv of a task: at most kKeyTile keys, all queries of the task, all heads of
  /// the group.
  void (*backward)(const Backward&, const Task&, float* scratch);
};

/// Null if the program was built without this instruction set.
const Tiles* avx512_tiles();
const Tiles* avx2_tiles();
const Tiles* portable_tiles();

}  // namespace longspan::flash
