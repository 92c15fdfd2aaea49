// One block of the decoder: h + attention(norm(h)), then h + mlp(norm(h)).
// T: tokens, L: rows that are wanted from the block, D: model dim, N: query heads, M: kv heads,
// H: head dim, I: intermediate dim.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "longspan/attention/attention.h"
#include "longspan/models/linear.h"
#include "longspan/models/rope.h"

namespace longspan {

struct BlockWeights {
  at::Tensor input_norm, post_attention_norm;
  Linear q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj;
  at::Tensor q_norm, k_norm;  // [H], undefined where the family has none

  std::vector<at::Tensor> attention_parameters() const;
  std::vector<at::Tensor> mlp_parameters() const;
};

/// What all blocks of a row share.
struct RowContext {
  Attention* attention;
  Packing packing;
  RotaryTable rotary;
  int64_t num_heads, num_kv_heads, head_dim;
  double eps;
  at::ScalarType compute_dtype;
};

/// RMSNorm with a fused backward that keeps h and one number a row. Result in `dtype`.
at::Tensor rms_norm(const at::Tensor& h_TD, const at::Tensor& weight_D, double eps,
                    at::ScalarType dtype);

/// h + o_proj(attend(rotated q, rotated k, v)); only the rows of `rows_L` where it is defined.
/// Keeps h and what the attention keeps.
at::Tensor attention_half(const at::Tensor& h_TD, const BlockWeights& weights,
                          const RowContext& row, const at::Tensor& rows_L);

/// h + down_proj(silu(gate_proj(x)) * up_proj(x)), x = norm(h). Keeps h, gate and up, and works
/// through the row in chunks, so that nothing else is ever as large as a row of I.
at::Tensor mlp_half(const at::Tensor& h_TD, const BlockWeights& weights, const RowContext& row);

/// d loss / d h given d loss / d output, and gradients of the parameters. With gate and up
/// undefined they are recomputed chunk by chunk from h; otherwise they are overwritten.
at::Tensor mlp_half_backward(const at::Tensor& dout_TD, const at::Tensor& h_TD, at::Tensor gate_TI,
                             at::Tensor up_TI, const BlockWeights& weights, const RowContext& row);

at::Tensor block(const at::Tensor& h_TD, const BlockWeights& weights, const RowContext& row,
                 const at::Tensor& rows_L);

/// The same with gradient checkpointing: keeps h and the attention's out and lse; the backward
/// recomputes the attention half around the kept result, and of the MLP gate and up, a chunk at a
/// time.
at::Tensor checkpointed_block(const at::Tensor& h_TD, const BlockWeights& weights,
                              const RowContext& row, const at::Tensor& rows_L);

}  // namespace longspan
