// Attention of blocks of queries over blocks of keys on one device.
// T: query tokens, S: key tokens, N: query heads, M: kv heads, H: numbers in a head: of queries and
// keys, or of values and outputs (AttentionSpec::key_dim, value_dim).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "longspan/attention/block.h"
#include "longspan/spec/attention_spec.h"

namespace longspan {

/// out_TNH in the dtype of q; lse_NT in fp32 (fp64 when q is). Queries in no block have out 0 and
/// lse -inf.
struct AttentionResult {
  at::Tensor out_TNH;
  at::Tensor lse_NT;
};

struct AttentionGradients {
  at::Tensor dq_TNH;
  at::Tensor dk_SMH;
  at::Tensor dv_SMH;
};

/// The blocks in rounds, none of which has a query twice: as few as can be, the earlier ones
/// fuller. Empty blocks are left out, so that there may be no round.
std::vector<std::vector<Block>> rounds_of(const std::vector<Block>& blocks);

/// What a kernel can compute beyond scale, grouped heads and values of another head dim than keys,
/// which every kernel can. It refuses the rest. No kernel computes sinks: they belong to a query's
/// whole softmax, so that the caller, which merges parts of it, adds them once (sinks.h).
struct KernelAbilities {
  const char* name;     // for messages: "The attention kernel of ..."
  bool window = false;  // blocks with lower ends, which sliding windows are cut into
  bool softcap = false;
  int64_t most_head_dim = 0;  // of keys and of values; 0: any
};

/// A pure function on tensors, outside autograd. Queries and keys may be in several blocks of a
/// call, a pair of them in at most one. GQA is computed without repeating keys in memory.
///
/// The spec describes the whole layer, of whose heads a call may have some: the shapes of the
/// tensors say how many. Both calls throw UserError for what the kernel cannot compute.
class BlockKernel {
 public:
  virtual ~BlockKernel() = default;
  virtual KernelAbilities abilities() const = 0;

  /// Rounds of blocks that share queries are merged in the dtype of lse. All but the first work on
  /// the rows that they have queries of.
  AttentionResult forward(const at::Tensor& q_TNH, const at::Tensor& k_SMH, const at::Tensor& v_SMH,
                          const AttentionSpec& spec, const std::vector<Block>& blocks) const;
  /// Gradients of the blocks given out and lse of the GLOBAL softmax of each query, of which these
  /// blocks may be a part: p = exp(s - lse_global), delta = rowsum(dout * out_global), so that the
  /// gradients of all parts simply add up (FlashAttention-2, arXiv 2307.08691, algorithm 2).
  /// They are in the dtype of accumulation: fp32 for bf16, else the dtype of q.
  AttentionGradients backward(const at::Tensor& dout_TNH, const at::Tensor& q_TNH,
                              const at::Tensor& k_SMH, const at::Tensor& v_SMH,
                              const at::Tensor& out_TNH, const at::Tensor& lse_NT,
                              const AttentionSpec& spec, const std::vector<Block>& blocks) const;

 protected:
  /// As forward(), each query in at most one block, of a spec that the kernel computes.
  virtual AttentionResult forward_round(const at::Tensor& q_TNH, const at::Tensor& k_SMH,
                                        const at::Tensor& v_SMH, const AttentionSpec& spec,
                                        const std::vector<Block>& blocks) const = 0;
  /// As backward(), of a spec that the kernel computes.
  virtual AttentionGradients backward_blocks(const at::Tensor& dout_TNH, const at::Tensor& q_TNH,
                                             const at::Tensor& k_SMH, const at::Tensor& v_SMH,
                                             const at::Tensor& out_TNH, const at::Tensor& lse_NT,
                                             const AttentionSpec& spec,
                                             const std::vector<Block>& blocks) const = 0;
};

/// The kernels for tensors on a CPU (attention/flash, or ATen's operators) and on a GPU (ATen's
/// flash attention, or cuDNN's).
const BlockKernel& cpu_block_kernel();
const BlockKernel& cuda_block_kernel();

}  // namespace longspan
