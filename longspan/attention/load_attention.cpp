// T: tokens, N: query heads, M: kv heads, H: head dim.
#include "longspan/attention/load_attention.h"

#include <ATen/ops/zeros.h>

#include <algorithm>

#include "longspan/attention/call_plan.h"

namespace longspan {
namespace {

void try_block(const BlockKernel& kernel, at::TensorOptions options, const AttentionSpec& spec,
               const Block& block) {
  const int64_t T = block.q_length, N = spec.num_heads / spec.num_kv_heads, M = 1;
  const at::Tensor q = at::zeros({T, N, spec.key_dim}, options),
                   k = at::zeros({T, M, spec.key_dim}, options),
                   v = at::zeros({T, M, spec.value_dim}, options),
                   dout = at::zeros({T, N, spec.value_dim}, options);
  const AttentionResult result = kernel.forward(q, k, v, spec, {block});
  kernel.backward({dout, q, k, v, result.out_TNH, result.lse_NT}, spec, {block});
}

}  // namespace

void load_attention(const BlockKernel& kernel, at::Device device, at::ScalarType dtype,
                    const std::vector<AttentionSpec>& specs, int64_t most_tokens) {
  constexpr int64_t kShort = 128;
  const at::TensorOptions options = at::TensorOptions(device).dtype(dtype);
  for (const AttentionSpec& spec : specs) {
    Block block{0, kShort, 0, kShort, true};
    if (spec.window) block.lower = 1 - std::min(*spec.window, kShort / 2);
    try_block(kernel, options, spec, trimmed(block));
    if (!spec.window && most_tokens >= kLeastForCudnn) {
      try_block(kernel, options, spec, {0, kLeastForCudnn, 0, kLeastForCudnn, true});
    }
  }
}

}  // namespace longspan
