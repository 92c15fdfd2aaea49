// Steps of the gated delta rule within its chunks (kernels/gated_delta_rule.h), by ATen's
// operators, with autograd's gradients, on any device (by kernels: kernels/delta_part.h). S:
// tokens of a part of a row, Z: its chunks, C: tokens of a chunk, M: key heads, N: value heads, K:
// numbers in a key's head.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace longspan {

/// Returns heads of D numbers in chunks, [H, Z, C, D], with zeros behind the last token.
at::Tensor rows_in_chunks(const at::Tensor& x_SHD, int64_t num_chunks);

/// Returns scale x / sqrt(sum x^2 + 1e-6) of each head, in chunks, [M, Z, C, K] in fp32 (fp64 for
/// fp64). Zeros follow the last token.
at::Tensor unit_heads(const at::Tensor& x_SMK, double scale, int64_t num_chunks);

/// Inputs of the matrices of a part's chunks.
struct ChunkInputs {
  at::Tensor g_SN, beta_SN;      // in the dtype of the arithmetic
  at::Tensor qk_MZCC, kk_MZCC;   // q k^T and k k^T
  at::Tensor documents_ZC;       // int64: the document of each token, the last token's behind it
  at::Tensor document_before_1;  // int64: that of the token before the part
};

/// decay_ij: exp(g_{j+1} + .. + g_i) where token i sees token j of its chunk (an earlier one of its
/// document, or itself), else 0.
struct ChunkMatrices {
  at::Tensor scores_NZCC;   // decay * q k^T
  at::Tensor inverse_NZCC;  // (1 + L)^-1 for L_ij = beta_i decay_ij (k k^T)_ij below the diagonal
  at::Tensor since_NZC;     // decay since the chunk's begin; 0: the token's document began later
  at::Tensor to_end_NZC;    // decay to the chunk's end; 0: the document ends before
  at::Tensor whole_NZ;      // decay of the chunk; 0: the chunk ends in another document
  at::Tensor beta_NZC;      // 0 behind the last token
};

ChunkMatrices chunk_matrices(const ChunkInputs& in);

}  // namespace longspan
