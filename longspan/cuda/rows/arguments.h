// Arguments of the kernels over rows. The program's compiler and NVRTC both compile this file, so
// the file has no includes, and its types have the same size for both compilers. Pointers are to
// device memory.
#pragma once

namespace longspan::cuda {

/// Largest number of elements in one memory access: 16 bytes of fp32, or of bf16.
inline constexpr int kFp32Vector = 4, kBf16Vector = 8;
/// Threads of a block that processes several rows, or only part of a row.
inline constexpr int kBlockThreads = 256;
/// Limits of the norm kernels, which read vectors of V elements: vectors in the registers of a
/// thread, and threads of a block.
template <int V>
inline constexpr int kVectorsOfThread = V == 1 ? 8 : 4;
template <int V>
inline constexpr int kMostThreads = V == 1 ? 1024 : 512;
inline constexpr int kMostWarps = 1024 / 32;
/// Vectors of a row that each thread processes in the cross-entropy's gradient.
inline constexpr int kLogitVectorsOfThread = 4;
/// Elements or vectors that each thread processes at a time in the log-sum-exp.
inline constexpr int kLogitScalarsAtOnce = 16, kLogitVectorsAtOnce = 8;
/// Largest number of threads of a block in the kernels of the log-sum-exp and of the
/// cross-entropy's gradient.
inline constexpr int kLogitThreads = 512;

/// Values of a matrix in 4 bits that share a scale, and scales that share a scale of their own
/// (FourBits).
inline constexpr int kPackedBlock = 64, kPackedScales = 256;

/// Elements of a parameter whose moments in 8 bits share a scale.
inline constexpr int kMomentBlock = 256;

/// Rows that a dropout thread processes, for one vector of columns.
inline constexpr int kDropOutRows = 8;
/// The bits of a hash that dropout compares.
inline constexpr unsigned long long kHashMask = (1ull << 53) - 1;

/// Threads of a block that sums weight gradients: columns, and parts of the sum.
inline constexpr int kSumColumns = 32, kSumParts = 16;

/// Gemms of rows sorted by group: a block's tile, its depth in each step, its threads, the steps
/// whose tiles it holds in shared memory at most (stages; at least one less), and a stage's bytes:
/// of two tiles in bf16, or of one in bf16 and one in fp32.
inline constexpr int kTileRows = 128, kTileColumns = 128, kTileDepth = 32, kGemmThreads = 128;
inline constexpr int kMostStages = 4, kBf16StageBytes = 16384, kFp32StageBytes = 24576;
/// Largest number of products in the sum of one gemm of rows: gate, up, and an adapter of each.
inline constexpr int kMostFactors = 4;

struct NormForward {
  const void* h;         // [num_rows, size]
  const void* weight;    // [size], bf16 or fp32
  const void* residual;  // like y; added to the result; may be null
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

/// dweight[size] += the sum over rows of parts[num_parts, size].
struct WeightSum {
  const float* parts;
  float* dweight;
  int num_parts;
  int size;
};

/// Strides of heads with contiguous numbers.
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
  int copies_rest;  // whether numbers without rotation are copied
  float sign;
};

/// Pairs of vectors per thread in the kernel that normalizes and rotates heads.
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
  const float* rstd;  // [num_all]; null: computed
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
  void* act;  // backward: d loss / d act, overwritten by act; forward: output, may be gate or up
  long long size;
  float slope, limit;  // for the clamped SwiGLU
};

/// y = x scale; 0 where the hash is below the limit.
struct DropOut {
  const void* x;
  void* y;                // [num_rows, num_columns]
  const long long* keys;  // [num_rows]
  long long num_rows, num_columns;
  unsigned long long seed, limit;
  float scale;
};

/// Tokens that the convolution sees, its own included.
inline constexpr int kConvTaps = 4;

/// y = silu(sum over w of weight[w] x[t - kConvTaps + 1 + w]), over the tokens that a token sees.
struct CausalConv {
  const void* x;                 // [num_tokens, num_channels]
  const void* before;            // [num_before, num_channels], tokens before the first; may be null
  const float* weight;           // [kConvTaps, num_channels]
  const unsigned char* earlier;  // [num_tokens], how many earlier tokens a token sees
  void* y;
  long long num_tokens;
  int num_channels, num_before, tokens_of_thread;
};

struct CausalConvBackward {
  CausalConv forward;  // without y
  const void* dy;
  void* dx;
  void* dbefore;   // like before; may be null
  float* dweight;  // [blocks_y, kConvTaps, num_channels], written
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

/// Rows sorted by group. Rows [begins[group], begins[group + 1]) belong to a group. A group is
/// divided into tiles of kTileRows rows; the group's last tile may have fewer rows. The group's
/// first tile has the number first_tiles[group].
struct RowGroups {
  const long long* begins;       // [num_groups + 1]
  const long long* first_tiles;  // [num_groups]
  const long long* tile_groups;  // [num_tiles]; num_groups: no such tile
  int num_groups;
};

/// Computes the members of RowGroups from the number of rows of each group.
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
  const long long* from;      // row of x for each row; null: the same row
  const long long* matrices;  // [num_groups], pointers; bf16 or fp32
  int depth;
  int matrices_are_bf16;
};

/// y[to[row]] = scale * the sum of the factors + the bias of the row's group.
struct GroupedRows {
  RowGroups sorted;
  GroupedFactor factors[kMostFactors];
  const long long* biases;  // [num_groups], pointers; null: no biases
  void* y;                  // [.., num_columns], bf16
  const long long* to;      // null: the same row
  int num_factors, num_columns;
  int biases_are_bf16, num_stages;
  float scale;
};

/// Rows of x: row `row` is x[from[row]], or x[row] where `from` is null.
struct RowsOfGradient {
  const void* x;  // [.., num_columns], bf16
  const long long* from;
  int num_columns;
};

/// gradients[group] += a^T b over the rows of the group.
struct GroupedMatrices {
  RowGroups sorted;
  RowsOfGradient a, b;
  const long long* gradients;  // [num_groups], pointers; bf16 or fp32
  int gradients_are_bf16, num_stages;
};

/// gradients[group] += the sum over the group's rows of weights[row] * x.
struct GroupedSums {
  RowGroups sorted;
  RowsOfGradient x;
  const float* weights;  // null: all 1
  const long long* gradients;
  int gradients_are_bf16;
};

/// dots[to[row]] = x[from[row]] . y[row]; or x[from[row]] . (the group's vector) where `vectors` is
/// not null.
struct GroupedDots {
  RowGroups sorted;
  const void* x;  // [.., num_columns], bf16
  const long long* from;
  const void* y;             // [rows, num_columns], bf16
  const long long* vectors;  // [num_groups], pointers; bf16 or fp32
  int vectors_are_bf16;
  float* dots;
  const long long* to;
  int num_columns;
  int adds;  // adds to the old value
};

/// A matrix in the format of bitsandbytes (FourBitLayout).
struct PackedBlocks {
  const unsigned char* codes;
  void* values;                // [num_values], fp32 or bf16
  const void* scales;          // of blocks: fp32, or codes of 8 bits where group_scales is not null
  const float* group_scales;   // of kPackedScales scales
  const float* mean;           // of the scales
  const float* numbers;        // [16], of the codes
  const float* scale_numbers;  // [256], of 8-bit scales
  long long num_values;
};

/// One update of AdamW with moments in 8 bits.
struct Update8bit {
  const void* gradient;  // [num_values], like values
  void* values;          // fp32 or bf16
  unsigned char* first_codes;
  unsigned char* second_codes;
  float* first_scales;  // of blocks of kMomentBlock values
  float* second_scales;
  long long num_values;
  float beta1, beta2, epsilon, decay, rate, root_correction2;
  float first_numbers[256], second_numbers[256];  // of the codes, ascending
};

/// A matrix with a scale and a zero for some columns of a row (GroupedLayout).
struct PackedGroups {
  const unsigned char* codes;
  void* values;                // [num_rows, num_columns], fp32 or bf16
  const float* scales;         // [num_rows, num_groups]
  const unsigned char* zeros;  // [num_rows, num_groups]
  const int* column_groups;    // [num_columns]
  long long num_rows, num_columns, num_groups, row_bytes;
};

/// Matrices of all groups, rounded from fp32 to bf16.
struct CastMatrices {
  const long long* matrices;  // [num_groups], pointers
  void* cast;                 // [num_groups, size]
  long long size;             // of a matrix: a multiple of kBf16Vector
};

/// Rows that have arrived from num_ranks processes for num_experts experts of this process, sorted
/// by process, then by expert. Writes their order by expert, then by process.
struct ArrivedRows {
  const long long* arrived;  // [num_ranks, num_experts], rows
  long long* order;          // arriving rows, in the order of experts
  long long* places;         // the inverse of order
  int num_ranks, num_experts;
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
