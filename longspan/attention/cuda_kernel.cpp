// ATen's flash attention on CUDA, and before it cuDNN's and FlashAttention 3 where those are faster
// (cudnn_attention.h, flash3_attention.h). It is reached through the dispatcher, so this file needs
// nothing of CUDA and is part of the core; the kernels themselves live in torch_cuda. It knows one
// head dim, a multiple of 8 up to 256: keys and values get zeros up to it. Blocks with lower ends
// are its windows. fp32, fp64 and softcaps, which it does not know, go to composed_attention.
#include <ATen/ATen.h>
#include <ATen/ops/_flash_attention_backward.h>
#include <ATen/ops/_flash_attention_forward.h>

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <string>

#include "longspan/attention/block_kernel.h"
#include "longspan/attention/composed_attention.h"
#include "longspan/attention/cudnn_attention.h"
#include "longspan/attention/flash3_attention.h"
#include "longspan/attention/packed_calls.h"
#include "longspan/cuda/gpu_error.h"
#include "longspan/memory/out_of_memory.h"

namespace longspan {
namespace {

constexpr int64_t kMostFlashDim = 256;

// What ATen's flash attention computes. Everything else is composed of exact operations.
bool is_for_flash(const at::Tensor& q, const AttentionSpec& spec) {
  const bool half = q.scalar_type() == at::kBFloat16 || q.scalar_type() == at::kHalf;
  return half && !spec.softcap && std::max(spec.key_dim, spec.value_dim) <= kMostFlashDim;
}

/// The head dim that ATen's flash attention is given.
int64_t flash_dim(const AttentionSpec& spec) {
  constexpr int64_t kMultiple = 8;
  const int64_t most = std::max(spec.key_dim, spec.value_dim);
  return (most + kMultiple - 1) / kMultiple * kMultiple;
}

/// What a kernel computes that may refuse; nothing where it does, and then it is given up. An error
/// of the GPU is perhaps an earlier kernel's, and no other computes behind it.
template <typename Compute>
auto attempt(void (*give_up)(const std::string& reason), const Compute& compute)
    -> std::optional<decltype(compute())> {
  try {
    return compute();
  } catch (const c10::Error& error) {
    if (is_out_of_memory(error) || is_error_of_gpu(error.what_without_backtrace())) throw;
    give_up(error.what_without_backtrace());
  } catch (const std::runtime_error& error) {  // of a library that has none of torch's own errors
    if (is_out_of_memory(error) || is_error_of_gpu(error.what())) throw;
    give_up(error.what());
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
    if (cudnn::suits(q, spec, blocks)) {
      const auto result =
          attempt(cudnn::give_up, [&] { return cudnn::forward(q, k, v, spec, blocks); });
      if (result) return *result;
    }
    if (const BlockKernel* flash3 = flash3::kernel_for(q, spec, /*backward=*/false)) {
      const auto result =
          attempt(flash3::give_up, [&] { return flash3->forward(q, k, v, spec, blocks); });
      if (result) return *result;
    }
    return forward_packed(q, k, v, blocks, flash_dim(spec),
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

  AttentionGradients backward_blocks(const at::Tensor& dout, const at::Tensor& q,
                                     const at::Tensor& k, const at::Tensor& v,
                                     const at::Tensor& out, const at::Tensor& lse_NT,
                                     const AttentionSpec& spec,
                                     const std::vector<Block>& blocks) const override {
    if (!is_for_flash(q, spec)) return composed::backward(dout, q, k, v, out, lse_NT, spec, blocks);
    if (cudnn::suits(q, spec, blocks)) {
      const auto gradients = attempt(cudnn::give_up, [&] {
        return cudnn::backward(dout, q, k, v, out, lse_NT, spec, blocks);
      });
      if (gradients) return *gradients;
    }
    if (const BlockKernel* flash3 = flash3::kernel_for(q, spec, /*backward=*/true)) {
      const auto gradients = attempt(flash3::give_up, [&] {
        return flash3->backward(dout, q, k, v, out, lse_NT, spec, blocks);
      });
      if (gradients) return *gradients;
    }
    // Without dropout the state of the random generator is read by nobody, but must be a tensor.
    const at::Tensor rng_state = at::zeros({2}, q.options().dtype(at::kUInt64));
    const at::Tensor unused = at::empty({0}, q.options());
    return backward_packed(dout, q, k, v, out, lse_NT, blocks, flash_dim(spec),
                           [&](const PackedCall& call, const at::Tensor& dout, const at::Tensor& q,
                               const at::Tensor& k, const at::Tensor& v, const at::Tensor& out,
                               const at::Tensor& lse) {
                             return at::_flash_attention_backward(
                                 dout, q, k, v, out, lse, call.queries.boundaries,
                                 call.keys.boundaries, call.queries.longest, call.keys.longest,
                                 /*dropout_p=*/0.0, call.causal, rng_state, unused, spec.scale,
                                 call.left(), call.right());
                           });
  }
};

}  // namespace

const BlockKernel& cuda_block_kernel() {
  static const CudaKernel kernel;
  return kernel;
}

}  // namespace longspan
