// T: query tokens, S: key tokens, N: query heads, M: kv heads, H: head dim.
#include "longspan/attention/load_attention.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <set>
#include <tuple>

#include "longspan/attention/call_plan.h"
#include "longspan/attention/cudnn_attention.h"
#include "longspan/attention/refusals.h"

namespace longspan {
namespace {

void try_block(const BlockKernel& kernel, at::TensorOptions options, const AttentionSpec& spec,
               int64_t N, int64_t M, Block block) {
  block.q_begin = block.k_begin = 0;
  const int64_t T = block.q_length, S = block.k_length;
  const at::Tensor q = at::zeros({T, N, spec.key_dim}, options),
                   k = at::zeros({S, M, spec.key_dim}, options),
                   v = at::zeros({S, M, spec.value_dim}, options),
                   dout = at::zeros({T, N, spec.value_dim}, options);
  const AttentionResult result = kernel.forward(q, k, v, spec, {block});
  kernel.backward({dout, q, k, v, result.out_TNH, result.lse_NT}, spec, {block});
}

}  // namespace

void load_attention(const BlockKernel& kernel, at::Device device, at::ScalarType dtype,
                    const std::vector<UsedAttention>& uses) {
  constexpr int64_t kShort = 128;
  const at::TensorOptions options = at::TensorOptions(device).dtype(dtype);
  for (const auto& [spec, most_tokens, of_longest_row] : uses) {
    const int64_t N = spec.num_heads / spec.num_kv_heads, M = 1;
    for (const int64_t length : {kShort, kLeastForCudnn}) {
      if (length > kShort && (spec.window || most_tokens < length)) continue;
      for (const bool causal : {true, false}) {
        Block block{0, length, 0, length, causal};
        if (spec.window) block.lower = 1 - std::min(*spec.window, kShort / 2);
        try_block(kernel, options, spec, N, M, trimmed(block));
      }
    }
    const at::Tensor one_head = at::empty({1, 1, spec.key_dim}, options);
    std::set<std::tuple<int64_t, int64_t, int64_t, int64_t, bool>> tried;
    for (const auto& [num_heads, num_kv_heads, block] : of_longest_row) {
      const int64_t most = cudnn::most_tokens(std::max(num_heads, num_kv_heads) *
                                              std::max(spec.key_dim, spec.value_dim));
      if (by_kernel({block}, most).cudnn.empty() || !cudnn::takes(one_head, spec)) continue;
      if (tried.emplace(num_heads, num_kv_heads, block.q_length, block.k_length, block.causal)
              .second) {
        try_block(kernel, options, spec, num_heads, num_kv_heads, block);
      }
    }
  }
  empty_cache(device);
}

}  // namespace longspan
