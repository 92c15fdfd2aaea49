// Blocks as calls of kernels that take many segments of queries and keys at once (cu_seqlens),
// aligned at the bottom right, with one causal flag, one window and one head dim for all.
// T: query tokens, S: key tokens, N: query heads, M: kv heads, H: numbers in a head.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "longspan/attention/block_kernel.h"

namespace longspan {

/// Where the blocks of one call lie in queries or keys.
struct Segments {
  at::Tensor boundaries;  // int32 cu_seqlens on the device
  at::Tensor index;       // tokens to gather; undefined when they are [0, total) as they are
  int64_t longest = 0, total = 0;

  Segments(const std::vector<std::pair<int64_t, int64_t>>& ranges, int64_t num_tokens,
           at::Device device);
  /// Their tokens along `dim`, contiguous.
  at::Tensor gather(const at::Tensor& x, int64_t dim = 0) const;
};

struct PackedCall {
  Segments queries, keys;
  bool causal;
  int64_t window_left;  // keys that a query sees before the one it is aligned with; -1: all

  /// The window as ATen's flash attention takes it. Where the left is given, so is the right.
  std::optional<int64_t> left() const;
  std::optional<int64_t> right() const;
};

/// Out [T, N, H] and lse [N, T] of the call's own tokens.
using PackedForward = std::function<std::pair<at::Tensor, at::Tensor>(
    const PackedCall& call, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v)>;
/// As BlockKernel::forward_round, by calls. Keys and values get zeros up to `head_dim`.
AttentionResult forward_packed(const at::Tensor& q_TNH, const at::Tensor& k_SMH,
                               const at::Tensor& v_SMH, const std::vector<Block>& blocks,
                               int64_t head_dim, const PackedForward& forward);

/// dq, dk and dv of the call's own tokens, of which it gets its queries' lse as well.
using PackedBackward = std::function<std::tuple<at::Tensor, at::Tensor, at::Tensor>(
    const PackedCall& call, const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k,
    const at::Tensor& v, const at::Tensor& out, const at::Tensor& lse)>;
/// As BlockKernel::backward_blocks, by calls.
AttentionGradients backward_packed(const at::Tensor& dout_TNH, const at::Tensor& q_TNH,
                                   const at::Tensor& k_SMH, const at::Tensor& v_SMH,
                                   const at::Tensor& out_TNH, const at::Tensor& lse_NT,
                                   const std::vector<Block>& blocks, int64_t head_dim,
                                   const PackedBackward& backward);

}  // namespace longspan
