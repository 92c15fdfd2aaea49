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

}  // namespace longspan::cuda
