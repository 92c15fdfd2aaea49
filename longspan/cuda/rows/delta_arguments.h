// Arguments of the kernels of the gated delta rule over a part of a row (kernels/delta_part.h),
// after those of arguments.h. Numbers of type S, in the kernel's name, are fp32 or bf16.
#pragma once

namespace longspan::cuda {

/// Tokens of a chunk; threads of a head of a token.
inline constexpr int kRuleTokens = 64, kUnitThreads = 32;
/// Numbers of one memory access. Dims of heads are multiples of it.
inline constexpr int kRuleVector = 4;

/// Queries and keys of length one, in chunks: y = scale x / sqrt(sum x^2 + 1e-6). Zeros follow the
/// last token. The members of arrays: of queries, of keys.
struct UnitHeads {
  const void* x[2];  // heads of key_dim numbers
  HeadPlaces at_x[2];
  float scale[2];
  float* y;         // [num_heads, num_chunks, 2, kRuleTokens, key_dim]
  const float* dy;  // backward: like y, and dx is written
  void* dx[2];      // [num_tokens, num_heads, key_dim]
  int num_tokens, num_chunks, num_heads, key_dim;
};

/// Inputs of a part's chunks. A key head has num_value_heads / num_key_heads value heads.
struct DeltaPart {
  const float* g;              // [num_tokens, num_value_heads]
  const float* beta;           // like g
  const long long* documents;  // [num_chunks, kRuleTokens]
  const long long* document_before;
  const float* heads;  // [num_key_heads, num_chunks, 2, kRuleTokens, key_dim], of UnitHeads
  const void* v;       // [num_tokens, num_value_heads, value_dim]
  HeadPlaces at_v;
  int num_tokens, num_chunks, num_key_heads, num_value_heads, key_dim, value_dim;
};

/// Operands of the products of each value head and chunk, which the names in kernels/delta_part.cpp
/// explain: matrices [num_value_heads, num_chunks, kRuleTokens, ..] of type S.
struct DeltaChunks {
  DeltaPart part;
  const float* products;  // [num_key_heads, num_chunks, 2, kRuleTokens, kRuleTokens]: qk, kk
  const void* dout;       // [num_tokens, num_value_heads, value_dim]; may be null
  void* left;             // [.., key_dim + kRuleTokens]
  void* right;            // [.., key_dim + value_dim]
  void* kept;             // [.., key_dim]
  void* inverse;          // [.., kRuleTokens]
  void* dout_in_chunks;   // [.., value_dim]
  float* whole;           // [num_value_heads, num_chunks]
};

/// Gradients of the inputs, of those of the operands.
struct DeltaChunksBackward {
  DeltaPart part;
  float* products;                                          // replaced by their gradients
  const void *inverse, *dinverse, *dleft, *dright, *dkept;  // as in DeltaChunks
  const void *held, *dheld;  // [.., key_dim + kRuleTokens, value_dim]: states in the first rows
  float* dheads;             // like part.heads
  void* dv;                  // [num_tokens, num_value_heads, value_dim]
  float *dg, *dbeta;         // like part.g
};

/// Longest head of keys of a scan, columns of the states of a block, and threads of a column. A
/// narrow block computes in half the time, where the GPU runs all narrow blocks at once.
inline constexpr int kScanKeys = 128, kScanColumns = 32, kNarrowScanColumns = 16,
                     kScanColumnThreads = 8;

/// A matrix of each head and chunk, [num_heads, num_chunks], in wider ones: numbers from a chunk to
/// the next, and from a row to the next.
struct ChunkPlaces {
  void* data;
  int chunk_stride, row_stride;
};

/// Passes a state S [key_dim, value_dim] of each head through all chunks of a part. A chunk has
///   x = e + a S,   S <- decay S + b^T x + f.
/// `reversed`: the last chunk first.
struct DeltaScan {
  ChunkPlaces a, b;    // [kRuleTokens, key_dim]
  ChunkPlaces e, x;    // [kRuleTokens, value_dim]; x is written, and may be e
  ChunkPlaces f;       // [key_dim, value_dim]; null: zeros
  ChunkPlaces states;  // like f, written: S before the chunk; may be f
  const float* decay;  // [num_heads, num_chunks]
  float* state;        // [num_heads, key_dim, value_dim], S, changed
  int num_chunks, key_dim, value_dim;
  int reversed;
};

}  // namespace longspan::cuda
