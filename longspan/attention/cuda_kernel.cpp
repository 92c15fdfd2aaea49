// Attention on CUDA: cuDNN's kernel for long blocks (cudnn_attention.h), FlashAttention 3 for the
// others (flash3_attention.h), else ATen's flash attention 2. fp32, fp64 and softcaps go to
// composed_attention. ATen's kernels live in torch_cuda and are reached through the dispatcher, so
// this file needs no CUDA and is part of the core. ATen's flash attention takes one head dim, a
// multiple of 8 up to 256: keys and values are padded by zeros. Blocks with lower ends become its
// windows.
#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <ATen/ops/_flash_attention_backward.h>
#include <ATen/ops/_flash_attention_forward.h>

#include <algorithm>
#include <exception>
#include <optional>
#include <string>

#include "longspan/attention/block_kernel.h"
#include "longspan/attention/call_plan.h"
#include "longspan/attention/composed_attention.h"
#include "longspan/attention/cudnn_attention.h"
#include "longspan/attention/flash3_attention.h"
#include "longspan/attention/packed_calls.h"
#include "longspan/attention/refusals.h"
#include "longspan/cuda/driver.h"

namespace longspan {
namespace {

constexpr int64_t kMostFlashDim = 256;

// Whether ATen's flash attention computes it. Everything else is composed of exact operations.
bool is_for_flash(const at::Tensor& q, const AttentionSpec& spec) {
  const bool half = q.scalar_type() == at::kBFloat16 || q.scalar_type() == at::kHalf;
  return half && !spec.softcap && std::max(spec.key_dim, spec.value_dim) <= kMostFlashDim;
}

/// The padded head dim for ATen's flash attention.
int64_t flash_dim(const AttentionSpec& spec) {
  constexpr int64_t kMultiple = 8;
  const int64_t most = std::max(spec.key_dim, spec.value_dim);
  return (most + kMultiple - 1) / kMultiple * kMultiple;
}

/// Thread blocks of a segment are in a grid's second dimension, which has this many at most.
constexpr CallLimits kForwardLimits{.num_segments = 65'535, .has_full_grid = true};

CallLimits backward_limits(const at::Tensor& q, int64_t head_dim) {
  CallLimits limits = kForwardLimits;
  limits.accumulators = FlashAccumulators{.num_heads = q.size(1), .head_dim = head_dim};
  if (at::globalContext().deterministicAlgorithms()) {
    const int known = cuda::multiprocessors_or_0(q.device().index());
    limits.accumulators->num_multiprocessors =
        known > 0 ? known : FlashAccumulators::kMostMultiprocessors;
  }
  return limits;
}

AttentionResult flash2_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                               const AttentionSpec& spec, const std::vector<Block>& blocks) {
  return forward_packed(q, k, v, blocks, kForwardLimits, flash_dim(spec),
                        [&](const PackedCall& call, const at::Tensor& q, const at::Tensor& k,
                            const at::Tensor& v) -> std::pair<at::Tensor, at::Tensor> {
                          auto [out, lse, rng_state, unused, mask] = at::_flash_attention_forward(
                              q, k, v, call.queries.boundaries, call.keys.boundaries,
                              call.queries.longest, call.keys.longest, /*dropout_p=*/0.0,
                              call.causal, /*return_debug_mask=*/false, spec.scale, call.left(),
                              call.right());
                          return {out, lse};
                        });
}

AttentionGradients flash2_backward(const AttentionGradientInputs& inputs, const AttentionSpec& spec,
                                   const std::vector<Block>& blocks) {
  const at::Tensor& q = inputs.q_TNH;
  // Without dropout no kernel reads the random generator's state, but it must be a tensor.
  const at::Tensor rng_state = at::zeros({2}, q.options().dtype(at::kUInt64));
  const at::Tensor unused = at::empty({0}, q.options());
  return backward_packed(inputs, blocks, backward_limits(q, flash_dim(spec)), flash_dim(spec),
                         [&](const PackedCall& call, const AttentionGradientInputs& packed) {
                           return at::_flash_attention_backward(
                               packed.dout_TNH, packed.q_TNH, packed.k_SMH, packed.v_SMH,
                               packed.out_TNH, packed.lse_NT, call.queries.boundaries,
                               call.keys.boundaries, call.queries.longest, call.keys.longest,
                               /*dropout_p=*/0.0, call.causal, rng_state, unused, spec.scale,
                               call.left(), call.right());
                         });
}

/// Returns compute(), or nothing where the kernel refuses; then gives the kernel up. Throws where
/// the GPU is short of memory: given up on one rank alone, a kernel would make the others wait for
/// this rank in the whole run.
template <typename Compute>
auto attempt(at::Device device, void (*give_up)(const std::string& reason), const Compute& compute)
    -> std::optional<decltype(compute())> {
  try {
    return compute();
  } catch (const std::exception& error) {
    if (!is_refusal(error)) throw;
    TORCH_CHECK_WITH(OutOfMemoryError, !is_short_of_memory(device),
                     "a kernel of attention has too little GPU memory: ", reason_of(error));
    give_up(reason_of(error));
  }
  return std::nullopt;
}

class CudaKernel : public BlockKernel {
 public:
  KernelAbilities abilities() const override {
    return {.name = "The attention kernel of CUDA",
            .window = true,
            .softcap = true,
            .most_head_dim = kMostFlashDim};
  }

 protected:
  AttentionResult forward_round(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                const AttentionSpec& spec,
                                const std::vector<Block>& blocks) const override {
    if (!is_for_flash(q, spec)) return composed::forward(q, k, v, spec, blocks);
    const BlocksByKernel by = by_kernel(blocks, cudnn::most_tokens({q, k, v}));
    if (!by.cudnn.empty() && cudnn::takes(q, spec)) {
      AttentionResult result;
      if (!by.varlen.empty()) result = varlen_forward(q, k, v, spec, by.varlen);
      const auto computed = attempt(q.device(), cudnn::give_up, [&] {
        cudnn::forward(q, k, v, spec, by.cudnn, result);
        return true;
      });
      if (computed) return result;
    }
    return varlen_forward(q, k, v, spec, blocks);
  }

  AttentionGradients backward_blocks(const AttentionGradientInputs& inputs,
                                     const AttentionSpec& spec,
                                     const std::vector<Block>& blocks) const override {
    const at::Tensor& q = inputs.q_TNH;
    if (!is_for_flash(q, spec)) return composed::backward(inputs, spec, blocks);
    const BlocksByKernel by = by_kernel(
        blocks,
        cudnn::most_tokens({inputs.dout_TNH, q, inputs.k_SMH, inputs.v_SMH, inputs.out_TNH}));
    if (!by.cudnn.empty() && cudnn::takes(q, spec)) {
      AttentionGradients sums;
      if (!by.varlen.empty()) sums = varlen_backward(inputs, spec, by.varlen);
      const auto computed = attempt(q.device(), cudnn::give_up, [&] {
        cudnn::backward(inputs, spec, by.cudnn, sums);
        return true;
      });
      if (computed) return sums;
    }
    return varlen_backward(inputs, spec, blocks);
  }

 private:
  static AttentionResult varlen_forward(const at::Tensor& q, const at::Tensor& k,
                                        const at::Tensor& v, const AttentionSpec& spec,
                                        const std::vector<Block>& blocks) {
    if (const BlockKernel* flash3 = flash3::kernel_for(q, spec, /*backward=*/false)) {
      const auto result = attempt(q.device(), flash3::give_up,
                                  [&] { return flash3->forward(q, k, v, spec, blocks); });
      if (result) return *result;
    }
    return flash2_forward(q, k, v, spec, blocks);
  }

  static AttentionGradients varlen_backward(const AttentionGradientInputs& inputs,
                                            const AttentionSpec& spec,
                                            const std::vector<Block>& blocks) {
    const BlockKernel* const flash3 =
        fit_flash3_accumulators(blocks) ? flash3::kernel_for(inputs.q_TNH, spec, /*backward=*/true)
                                        : nullptr;
    if (flash3 != nullptr) {
      const auto gradients = attempt(inputs.q_TNH.device(), flash3::give_up,
                                     [&] { return flash3->backward(inputs, spec, blocks); });
      if (gradients) return *gradients;
    }
    return flash2_backward(inputs, spec, blocks);
  }
};

}  // namespace

const BlockKernel& cuda_block_kernel() {
  static const CudaKernel kernel;
  return kernel;
}

}  // namespace longspan
