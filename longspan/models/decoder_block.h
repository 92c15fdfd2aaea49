// One block of the decoder: h + attention(norm(h)), then h + mlp(norm(h)).
// T: tokens, L: rows that are wanted from the block, D: model dim, N: query heads, M: kv heads,
// H: head dim, I: intermediate dim.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "longspan/attention/attention.h"
#include "longspan/models/activation_store.h"
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
  int64_t mlp_tiles = 0;  // parts of the row in which each MLP is computed; 0: chosen by size
  ActivationStore* store = nullptr;  // of what checkpointing keeps; null: saved as it is

  AttentionSpec attention_spec() const {
    return plain_attention(num_heads, num_kv_heads, head_dim);
  }
};

/// RMSNorm with a fused backward that keeps h and one number a row. Result in `dtype`.
at::Tensor rms_norm(const at::Tensor& h_TD, const at::Tensor& weight_D, double eps,
                    at::ScalarType dtype);

/// h + o_proj(attend(rotated q, rotated k, v)); only the rows of `rows_L` where it is defined.
/// Keeps h and what the attention keeps.
at::Tensor attention_sublayer(const at::Tensor& h_TD, const BlockWeights& weights,
                              const RowContext& row, const at::Tensor& rows_L);

/// The steps of attention_sublayer() one by one, for a checkpoint that takes them apart. Outside of
/// autograd but for what the attention does.
struct Heads {
  at::Tensor q_TNH, k_TMH, v_TMH;
};
/// Rotated queries and keys, and values, of norm(h).
Heads project_heads(const at::Tensor& h_TD, const BlockWeights& weights, const RowContext& row);
/// d loss / d heads -> adds it, through the projections and the norm, to dh_TD in place (where
/// `wants_input`), and gradients of the parameters.
void project_heads_backward(const Heads& gradients, const at::Tensor& h_TD, at::Tensor dh_TD,
                            bool wants_input, const BlockWeights& weights, const RowContext& row);
/// h + o_proj(out).
at::Tensor project_output(const at::Tensor& h_LD, const at::Tensor& out_LNH, const Linear& o_proj,
                          const RowContext& row);

/// h + down_proj(silu(gate_proj(x)) * up_proj(x)), x = norm(h). Keeps h, and gate and up where the
/// row has no tiles, and works through the row in chunks, so that nothing else is ever as large as
/// a row of I.
at::Tensor mlp_sublayer(const at::Tensor& h_TD, const BlockWeights& weights, const RowContext& row);

/// d loss / d h given d loss / d output, and gradients of the parameters. With gate and up
/// undefined they are recomputed chunk by chunk from h; otherwise they are overwritten.
at::Tensor mlp_sublayer_backward(const at::Tensor& dout_TD, const at::Tensor& h_TD,
                                 at::Tensor gate_TI, at::Tensor up_TI, const BlockWeights& weights,
                                 const RowContext& row);

/// Rows of the chunks in which an MLP works.
int64_t mlp_chunk_rows(int64_t num_rows, const BlockWeights& weights, const RowContext& row);
int64_t mlp_num_chunks(int64_t num_rows, const BlockWeights& weights, const RowContext& row);

/// The backward of an MLP, a chunk of C rows at a time.
class MlpBackward {
 public:
  /// `residual`: options of h. `weights` and `row` must outlive it.
  MlpBackward(const at::TensorOptions& residual, int64_t num_rows, bool recomputes,
              const BlockWeights& weights, const RowContext& row);
  /// d loss / d h of rows [begin, begin + C) into dout_CD, in place; gate and up are recomputed.
  void chunk(int64_t begin, const at::Tensor& h_CD, const at::Tensor& dout_CD);
  /// The same into dh_CD with gate and up at hand, which are overwritten.
  void chunk(int64_t begin, const at::Tensor& h_CD, const at::Tensor& dout_CD,
             const at::Tensor& gate_CI, const at::Tensor& up_CI, const at::Tensor& dh_CD);
  /// After the last chunk: the gradient of the norm's weight.
  void finish();

 private:
  void chunk(int64_t begin, const at::Tensor& h_CD, const at::Tensor& rstd_C,
             const at::Tensor& x_CD, at::Tensor gate_CI, at::Tensor up_CI,
             const at::Tensor& dout_CD, const at::Tensor& dh_CD);

  const BlockWeights& weights_;
  const RowContext& row_;
  Linear gate_proj_, up_proj_, down_proj_;  // in the dtype of computation
  at::Tensor work_CI_, dnorm_D_;            // [1 or 3, C, I]
  PreciseSums sums_;
};

at::Tensor block(const at::Tensor& h_TD, const BlockWeights& weights, const RowContext& row,
                 const at::Tensor& rows_L);

/// The same with gradient checkpointing: keeps h and the attention's out and lse, on the device or
/// in the row's store; the backward recomputes the rest around the saved result, what lies between
/// attention and the block's output a chunk at a time. d loss / d output is overwritten where
/// nobody else holds it.
at::Tensor checkpointed_block(const at::Tensor& h_TD, const BlockWeights& weights,
                              const RowContext& row, const at::Tensor& rows_L);

}  // namespace longspan
