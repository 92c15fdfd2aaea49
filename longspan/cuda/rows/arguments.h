// What the kernels over rows are given, for the program and for NVRTC alike: no includes, and sizes
// in types that both have. Pointers are to memory of the device.
#pragma once

namespace longspan::cuda {

/// Most numbers of one access to memory: 16 bytes of the widest type.
inline constexpr int kFp32Vector = 4, kBf16Vector = 8;
/// Threads of a block that takes several rows, or no whole one.
inline constexpr int kBlockThreads = 256;
/// Vectors that each thread of a norm holds in registers, and most threads of a block: of vectors
/// of one number, and of more.
template <int V>
inline constexpr int kVectorsOfThread = V == 1 ? 8 : 4;
template <int V>
inline constexpr int kMostThreads = V == 1 ? 1024 : 512;
inline constexpr int kMostWarps = 1024 / 32;
/// Vectors of a row that a block of the cross-entropy's gradient takes.
inline constexpr int kLogitVectorsOfThread = 4;
/// The same of the log-sum-exp, at a time.
inline constexpr int kLogitScalarsAtOnce = 16, kLogitVectorsAtOnce = 8;
/// Most threads of its blocks.
inline constexpr int kLogitThreads = 512;

/// Rows of which a thread of the dropout takes some columns.
inline constexpr int kDropOutRows = 8;
/// The bits of a hash that choose.
inline constexpr unsigned long long kHashMask = (1ull << 53) - 1;

/// Threads of a block that sums up weight gradients: columns, and parts of the sum.
inline constexpr int kSumColumns = 32, kSumParts = 16;

/// Of gemms of rows that are sorted by group: what a block computes, how much of the sum it takes
/// at a time, and what its threads share.
inline constexpr int kTileRows = 128, kTileColumns = 128, kTileDepth = 32, kGemmThreads = 256;
inline constexpr int kGemmSharedBytes = 34816;
/// Products that a gemm of rows adds up: of gate and up, and of an adapter of each.
inline constexpr int kMostFactors = 4;

struct NormForward {
  const void* h;         // [num_rows, size]
  const void* weight;    // [size], bf16 or fp32
  const void* residual;  // like y, which it is added to; may be null
  void* y;
  float* rstd;  // [num_rows], read or written
  long long num_rows;
  int size;
  int weight_is_bf16;
  float eps;
};

struct NormBackward {
  const void* dy;
  const void* h;
  const void* weight;
  const void* residual;  // like h; may be null, or dh
  const float* rstd;
  void* dh;
  float* dweight;  // [blocks, size], written
  long long num_rows;
  int size;
  int weight_is_bf16;
};

/// dweight[size] += the sum of [num_parts, size].
struct WeightSum {
  const float* parts;
  float* dweight;
  int num_parts;
  int size;
};

/// Heads of head_dim numbers that lie together.
struct HeadPlaces {
  long long row_stride, head_stride;
};

struct Rotate {
  const void* x;
  void* y;  // contiguous; may be x
  const float* cos;
  const float* sin;  // [num_rows, num_pairs]
  long long num_rows;
  HeadPlaces at_x;
  int num_heads, head_dim, num_pairs;
  int copies_rest;  // whether numbers that are not rotated are written
  float sign;
};

/// Pairs of vectors that each thread holds of a head which is normed and rotated.
inline constexpr int kPairsOfThread = 2;

struct NormRotate {
  const void* x;
  void* y;             // may be x
  const void* weight;  // [head_dim], bf16 or fp32
  const float* cos;
  const float* sin;  // [rows, num_pairs]
  float* rstd;       // [num_all], written; may be null
  HeadPlaces at_x, at_y;
  int num_all;  // heads of all rows
  int num_heads, head_dim, num_pairs;
  int weight_is_bf16;
  float eps;
};

struct NormRotateBackward {
  const void* dy;
  const void* x;
  const void* weight;
  const float* cos;
  const float* sin;
  const float* rstd;  // [num_all]; null: it is computed
  void* dx;           // [num_all, head_dim]
  float* dweight;     // [blocks, head_dim], written
  HeadPlaces at_dy, at_x;
  int num_all;
  int num_heads, head_dim, num_pairs;
  int weight_is_bf16;
  float eps;
};

struct Gated {
  void* gate;
  void* up;
  void* act;  // d loss / d act and then act, or the output, which may be gate or up
  long long size;
  float slope, limit;  // of the clamped SwiGLU
};

/// y = x scale, or 0 where the hash is below the limit.
struct DropOut {
  const void* x;
  void* y;                // [num_rows, num_columns]
  const long long* keys;  // [num_rows]
  long long num_rows, num_columns;
  unsigned long long seed, limit;
  float scale;
};

struct LogSumExp {
  const float* logits;  // [rows, size]
  const long long* labels;
  double* lse;
  double* picked;
  int size;
};

struct CrossEntropyGradient {
  const float* logits;
  void* out;  // [rows, size]; may be logits
  const long long* labels;
  const double* lse;
  const float* scale;
  int size;
};

/// Rows that are sorted by group: those of a group are [begins[group], begins[group + 1]), and
/// tiles of kTileRows of them, its last one's fewer, are numbered from first_tiles[group] on.
struct RowGroups {
  const long long* begins;       // [num_groups + 1]
  const long long* first_tiles;  // [num_groups]
  const long long* tile_groups;  // [num_tiles], num_groups where there is no such tile
  int num_groups;
};

/// Makes them of how many rows each group has.
struct GroupTiles {
  const long long* counts;  // [num_groups]
  long long* begins;
  long long* first_tiles;
  long long* tile_groups;
  int num_groups;
  int num_tiles;
};

/// Rows of x times the matrix of their group.
struct GroupedFactor {
  const void* x;              // [.., depth], bf16
  const long long* from;      // which row of x each row is; null: the one of its number
  const long long* matrices;  // [num_groups], where each group's is; bf16 or fp32
  int depth;
  int matrices_are_bf16;
};

/// y[to[row]] = scale * the sum of the factors + the bias of the row's group.
struct GroupedRows {
  RowGroups sorted;
  GroupedFactor factors[kMostFactors];
  const long long* biases;  // [num_groups], where each is; null: there are none
  void* y;                  // [.., num_columns], bf16
  const long long* to;      // null: the row of its number
  int num_factors;
  int num_columns;
  int biases_are_bf16;
  float scale;
};

/// Rows of x, each of them from[row]; null: the one of its number.
struct RowsOfGradient {
  const void* x;  // [.., num_columns], bf16
  const long long* from;
  int num_columns;
};

/// gradients[group] += a^T b over the rows of the group.
struct GroupedMatrices {
  RowGroups sorted;
  RowsOfGradient a, b;
  const long long* gradients;  // [num_groups], where each is; bf16 or fp32
  int gradients_are_bf16;
};

/// gradients[group] += the sum over its rows of weights[row] * x.
struct GroupedSums {
  RowGroups sorted;
  RowsOfGradient x;
  const float* weights;  // null: ones
  const long long* gradients;
  int gradients_are_bf16;
};

/// dots[to[row]] = x[from[row]] . y[row], or where `vectors` is not null . the one of its group.
struct GroupedDots {
  RowGroups sorted;
  const void* x;  // [.., num_columns], bf16
  const long long* from;
  const void* y;             // [rows, num_columns], bf16
  const long long* vectors;  // [num_groups], where each is; bf16 or fp32
  int vectors_are_bf16;
  float* dots;
  const long long* to;
  int num_columns;
  int adds;  // to what is there
};

/// sum[row] += the sum over i of weights[row, i] * y[row, i].
struct CombineRows {
  float* sum;     // [num_rows, num_columns]
  const void* y;  // [num_rows, num_parts, num_columns], bf16
  const float* weights;
  long long num_rows;
  int num_parts;
  int num_columns;
};

}  // namespace longspan::cuda
