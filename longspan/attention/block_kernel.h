// Attention of blocks of queries over blocks of keys on one device. T: query tokens, S: key tokens,
// N: query heads, M: kv heads, H: the head dim: AttentionSpec::key_dim for queries and keys,
// AttentionSpec::value_dim for values and outputs.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "longspan/attention/block.h"
#include "longspan/spec/attention_spec.h"

namespace longspan {

/// out_TNH in the dtype of q, and the log-sum-exp lse_NT in fp32 (fp64 if q is fp64). Queries in no
/// block have out 0 and lse -inf.
struct AttentionResult {
  at::Tensor out_TNH;
  at::Tensor lse_NT;
};

/// Inputs of the backward. `out` and `lse` belong to each query's GLOBAL softmax, over all keys
/// that the query sees. The blocks of a call may have only some of these keys.
struct AttentionGradientInputs {
  at::Tensor dout_TNH;
  at::Tensor q_TNH, k_SMH, v_SMH;
  at::Tensor out_TNH, lse_NT;
};

struct AttentionGradients {
  at::Tensor dq_TNH;
  at::Tensor dk_SMH;
  at::Tensor dv_SMH;
};

/// Splits the blocks into the smallest number of rounds such that no query is in two blocks of a
/// round. Earlier rounds are fuller. Empty blocks are removed; the result may be empty.
std::vector<std::vector<Block>> rounds_of(const std::vector<Block>& blocks);

/// Optional features of a kernel. Every kernel supports any scale, grouped heads, and a head dim of
/// values that differs from the head dim of keys. BlockKernel refuses other features that
/// abilities() does not name. No kernel computes sinks, because sinks belong to a query's whole
/// softmax. The caller merges the parts of the softmax and then adds the sinks once (sinks.h).
struct KernelAbilities {
  const char* name;     // for messages: "The attention kernel of ..."
  bool window = false;  // blocks with lower ends, as sliding windows and two-way spans have
  bool softcap = false;
  int64_t most_head_dim = 0;  // of keys and of values; 0: any
};

/// An attention kernel: a pure function on tensors, outside autograd. A query or a key may be in
/// several blocks of a call, but a pair of a query and a key is in at most one block. Grouped-query
/// attention does not repeat keys in memory.
///
/// The spec describes the whole layer. A call may have only some of the layer's heads; the tensor
/// shapes show their number. forward() and backward() throw UserError for a feature that the kernel
/// lacks.
class BlockKernel {
 public:
  virtual ~BlockKernel() = default;
  virtual KernelAbilities abilities() const = 0;

  /// Returns the attention of the blocks. Blocks that share queries are computed in rounds and
  /// merged in the dtype of lse. Later rounds read and write only the tensor rows of their queries.
  AttentionResult forward(const at::Tensor& q_TNH, const at::Tensor& k_SMH, const at::Tensor& v_SMH,
                          const AttentionSpec& spec, const std::vector<Block>& blocks) const;
  /// Returns gradients of the blocks: p = exp(s - lse_global), delta = rowsum(dout * out_global).
  /// The gradients of calls with different keys therefore add up (FlashAttention-2, arXiv
  /// 2307.08691, algorithm 2). Gradients are in the accumulation dtype: fp32 for bf16, otherwise
  /// the dtype of q.
  AttentionGradients backward(const AttentionGradientInputs& inputs, const AttentionSpec& spec,
                              const std::vector<Block>& blocks) const;

 protected:
  /// Same contract as forward(), for a spec that the kernel supports. Each query is in at most one
  /// block.
  virtual AttentionResult forward_round(const at::Tensor& q_TNH, const at::Tensor& k_SMH,
                                        const at::Tensor& v_SMH, const AttentionSpec& spec,
                                        const std::vector<Block>& blocks) const = 0;
  /// Same contract as backward(), for a spec that the kernel supports.
  virtual AttentionGradients backward_blocks(const AttentionGradientInputs& inputs,
                                             const AttentionSpec& spec,
                                             const std::vector<Block>& blocks) const = 0;
};

/// The kernels for CPU tensors (attention/flash, or ATen's operators) and for GPU tensors (cuDNN,
/// FlashAttention 3, ATen's flash attention, or ATen's operators).
const BlockKernel& cpu_block_kernel();
const BlockKernel& cuda_block_kernel();

}  // namespace longspan
