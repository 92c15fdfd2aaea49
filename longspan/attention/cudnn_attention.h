// cuDNN's attention, called through ATen. On an H100 cuDNN's attention is 1.7 times as fast as
// ATen's flash attention (docs/gpu-measurements.md).
#pragma once

#include <initializer_list>
#include <string>

#include "longspan/attention/block_kernel.h"

namespace longspan::cudnn {

/// True if cuDNN can compute the blocks of by_kernel() (call_plan.h) for these heads on this GPU,
/// and is faster than ATen's flash attention. cuDNN computes one block per call, and makes a plan
/// for each new length in about 0.1 s. cuDNN's gradients are not bit-reproducible, so takes() is
/// false in deterministic runs.
bool takes(const at::Tensor& q_TNH, const AttentionSpec& spec);

/// Returns the most tokens of a block of these tensors, [tokens, heads, dim], for which a call has
/// offsets of fewer than 2^31 elements. cuDNN's kernels are closed source, so nothing shows that
/// their offsets have more than 32 bits. A document may begin at any token.
int64_t most_tokens(std::initializer_list<at::Tensor> of_tokens);
/// `token_numbers`: elements of a token in the widest tensor.
int64_t most_tokens(int64_t token_numbers);

/// Makes takes() return false from now on, after cuDNN refused a call that takes() had accepted.
/// Warns once.
void give_up(const std::string& reason);

/// In its lifetime takes() accepts tensors of CPUs, and cuDNN has refused nothing before. For
/// tests, which register the operators of cuDNN for CPUs.
class ForCpus {
 public:
  ForCpus();
  ~ForCpus();
  ForCpus(const ForCpus&) = delete;
  ForCpus& operator=(const ForCpus&) = delete;

 private:
  bool had_refused_;
};

/// Computes blocks of by_kernel() into `result`, whose other queries keep their values. If `result`
/// is undefined, same contract as BlockKernel::forward_round(). Throws c10::Error if cuDNN refuses
/// a call twice, the second time with the memory of torch's cache.
void forward(const at::Tensor& q_TNH, const at::Tensor& k_SMH, const at::Tensor& v_SMH,
             const AttentionSpec& spec, const std::vector<Block>& blocks, AttentionResult& result);

/// Adds the gradients of blocks of by_kernel() to `sums`. If `sums` is undefined, same contract as
/// BlockKernel::backward_blocks().
void backward(const AttentionGradientInputs& inputs, const AttentionSpec& spec,
              const std::vector<Block>& blocks, AttentionGradients& sums);

}  // namespace longspan::cudnn
