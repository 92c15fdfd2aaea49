// Converts blocks to calls of varlen kernels. One call of a varlen kernel takes many segments of
// queries and keys (cu_seqlens). Causal masks align at the bottom right. A call has one causal
// flag, one window and one head dim. T: query tokens, S: key tokens, N: query heads, M: kv heads,
// H: elements of a head.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "longspan/attention/block_kernel.h"
#include "longspan/attention/call_plan.h"

namespace longspan {

/// The query segments, or the key segments, of one call.
struct Segments {
  at::Tensor boundaries;  // int32 cu_seqlens on the device
  at::Tensor index;       // tokens to gather; undefined if the tokens are [first, first + total)
  int64_t first = 0, longest = 0, total = 0;
  bool are_all = false;  // of the tensor's tokens

  Segments(const std::vector<std::pair<int64_t, int64_t>>& ranges, int64_t num_tokens,
           at::Device device);
  /// Returns the tokens of the segments along `dim`, contiguous.
  at::Tensor gather(const at::Tensor& x, int64_t dim = 0) const;
  /// Copies the tokens of `part` to the places of the segments in `to`.
  void scatter(const at::Tensor& part, const at::Tensor& to, int64_t dim = 0) const;
  /// Adds the tokens of `part` at the places of the segments in `to`.
  void add(const at::Tensor& part, const at::Tensor& to) const;
};

struct PackedCall {
  Segments queries, keys;
  bool causal;
  int64_t window_left;  // keys that a query sees before the key on its diagonal; -1: all

  /// Return the window's ends in the form of ATen's flash attention, which needs both ends or
  /// neither.
  std::optional<int64_t> left() const;
  std::optional<int64_t> right() const;
};

/// Returns out [T, N, H] and lse [N, T] of the call's query tokens.
using PackedForward = std::function<std::pair<at::Tensor, at::Tensor>(
    const PackedCall& call, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v)>;
/// Same contract as BlockKernel::forward_round(); makes calls of `forward` within `limits`. Zeros
/// pad the heads of keys and values to `head_dim`.
AttentionResult forward_packed(const at::Tensor& q_TNH, const at::Tensor& k_SMH,
                               const at::Tensor& v_SMH, const std::vector<Block>& blocks,
                               const CallLimits& limits, int64_t head_dim,
                               const PackedForward& forward);

/// Returns dq, dk and dv of the call's tokens. inputs.lse_NT belongs to the call's queries.
using PackedBackward = std::function<std::tuple<at::Tensor, at::Tensor, at::Tensor>(
    const PackedCall& call, const AttentionGradientInputs& inputs)>;
/// Same contract as BlockKernel::backward_blocks(); makes calls of `backward` within `limits`.
AttentionGradients backward_packed(const AttentionGradientInputs& inputs,
                                   const std::vector<Block>& blocks, const CallLimits& limits,
                                   int64_t head_dim, const PackedBackward& backward);

}  // namespace longspan
