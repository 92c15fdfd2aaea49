// The kernels of the chunked gated delta rule on a GPU (cuda/rows/delta_*.cu), in chunks of 64
// tokens, and the tensors that they pass to each other. S: tokens of a part of a row, Z: chunks, C:
// tokens of a chunk, M: key heads, N: value heads, K, V: numbers in a head of keys and of values,
// A: two, for queries and for keys, L: K + C, R: K + V.
#pragma once

#include <ATen/core/Tensor.h>

#include "longspan/kernels/gated_delta_rule.h"

namespace longspan {

/// Consecutive tokens of a row that begin at a chunk's begin.
struct DeltaPart {
  at::Tensor q_SMK, k_SMK, v_SNV;
  at::Tensor g_SN, beta_SN;      // by kernels: fp32, contiguous
  at::Tensor documents_ZC;       // int64: the document of each token, the last token's behind it
  at::Tensor document_before_1;  // int64: that of the token before the part
};

namespace cuda_rows {

/// Operands of the products of a part. decay_ij: exp(g_{j+1} + .. + g_i) where token i sees token j
/// of its chunk (an earlier one of its document, or itself), else 0. since: the decay from the
/// chunk's begin to a token (0: the token's document began later), to_end: from a token to the
/// chunk's end (0: the document ends before), whole: of the chunk (0: it ends in another document).
/// Zeros follow the last token. Heads and their products are fp32, the others have v's dtype but
/// for `whole`, in fp32.
struct PartOperands {
  at::Tensor heads_MZACK;     // queries and keys of length one; queries over sqrt(K)
  at::Tensor products_MZACC;  // q k^T, k k^T
  at::Tensor left_NZCL;       // since q; decay q k^T
  at::Tensor right_NZCR;      // -beta since k; beta v
  at::Tensor kept_NZCK;       // to_end k
  at::Tensor inverse_NZCC;    // (1 + beta decay k k^T, below the diagonal)^-1
  at::Tensor whole_NZ;
  at::Tensor dout_NZCV;  // the gradient of the output in chunks; undefined in a forward
};

/// Gradients of a part's inputs, which are written. Contiguous; dg and dbeta in fp32.
struct PartGradients {
  at::Tensor dq_SMK, dk_SMK, dv_SNV, dg_SN, dbeta_SN;
};

/// Whether the kernels take these inputs: fp32 or bf16, heads of keys of up to 128 numbers, dims
/// that are multiples of 4.
bool has_delta_rule(const DeltaRuleInputs& inputs);
/// Returns v as the kernels read it: a copy if its numbers are not in vectors of 4.
at::Tensor readable_values(const at::Tensor& v_TNV);

/// Writes the heads of length one.
void unit_heads(const at::Tensor& heads_MZACK, const DeltaPart& in);
/// Writes dq and dk, of gradients of heads of length one.
void unit_heads_backward(const PartGradients& to, const at::Tensor& dheads_MZACK,
                         const DeltaPart& in);

/// Writes all operands but heads and products, of these. `dout_SNV`: undefined in a forward.
void chunk_operands(const PartOperands& out, const DeltaPart& in, const at::Tensor& dout_SNV);

struct OperandGradients {
  at::Tensor dinverse_NZCC, dleft_NZCL, dright_NZCR, dkept_NZCK;
  at::Tensor held_NZLV, dheld_NZLV;  // states before each chunk, and gradients of states behind it,
                                     // in the first K rows
};
/// Writes dv, dg, dbeta and the part of the gradients of heads that does not come from products.
/// Replaces the products of `x` by their gradients.
void chunk_operands_backward(const PartGradients& to, const at::Tensor& dheads_MZACK,
                             const OperandGradients& d, const PartOperands& x, const DeltaPart& in);

/// Matrices of a scan, whose chunks compute x = e + a S, then S <- decay S + b^T x + f. All may be
/// columns or rows of wider ones. x may be e, and states f.
struct ScanMatrices {
  at::Tensor a_NZCK, b_NZCK, e_NZCV, f_NZKV;  // f: may be undefined
  at::Tensor x_NZCV, states_NZKV;             // written; states: before each chunk
  at::Tensor decay_NZ;                        // fp32
  bool reversed;                              // the last chunk first
};
/// Changes the state, in fp32.
void delta_scan(const ScanMatrices& m, const at::Tensor& state_NKV);

}  // namespace cuda_rows
}  // namespace longspan
