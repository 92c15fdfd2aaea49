#include "longspan/attention/packed_calls.h"

#include <ATen/ATen.h>
#include <ATen/OpMathType.h>

#include <algorithm>
#include <limits>

#include "longspan/attention/equal_dims.h"
#include "longspan/memory/recently_used.h"
#include "longspan/memory/transfer.h"

namespace longspan {
namespace {

using Ranges = std::vector<std::pair<int64_t, int64_t>>;

std::vector<PackedCall> make_calls(const std::vector<Block>& blocks, const CallLimits& limits,
                                   int64_t T, int64_t S, at::Device device) {
  std::vector<PackedCall> calls;
  for (const PlannedCall& call : plan_calls(blocks, limits)) {
    Ranges queries, keys;
    for (const Block& segment : call.segments) {
      queries.emplace_back(segment.q_begin, segment.q_length);
      keys.emplace_back(segment.k_begin, segment.k_length);
    }
    calls.push_back(
        {Segments(queries, T, device), Segments(keys, S, device), call.causal, call.window_left});
  }
  return calls;
}

/// A list of blocks as the calls of a kernel.
struct AskedCalls {
  const std::vector<Block>& blocks;
  CallLimits limits;
  int64_t T, S;
  at::Device device;
};
struct CallsOf {
  std::vector<Block> blocks;
  CallLimits limits;
  int64_t T, S;
  at::Device device;

  explicit CallsOf(const AskedCalls& asked)
      : blocks(asked.blocks), limits(asked.limits), T(asked.T), S(asked.S), device(asked.device) {}
  bool operator==(const AskedCalls& other) const {
    return T == other.T && S == other.S && device == other.device && limits == other.limits &&
           std::ranges::equal(blocks, other.blocks, same);
  }
  static bool same(const Block& a, const Block& b) {
    return std::tie(a.q_begin, a.q_length, a.k_begin, a.k_length, a.causal, a.offset, a.lower) ==
           std::tie(b.q_begin, b.q_length, b.k_begin, b.k_length, b.causal, b.offset, b.lower);
  }
};
using Calls = std::shared_ptr<const std::vector<PackedCall>>;

/// All layers of a row use the same few lists of blocks, forward and backward, so each list is
/// uploaded to the device once.
Calls calls_of(const std::vector<Block>& blocks, const CallLimits& limits, int64_t T, int64_t S,
               at::Device device) {
  // Enough for a ring of 8 in two directions, for layers with and without a window, forward and
  // backward. Calls that are forgotten are freed on attention's stream, and no attention on another
  // stream reads them.
  constexpr int64_t kMostLists = 64;
  // Never destroyed: the driver may be gone at exit.
  static auto& recent = *new RecentlyUsed<CallsOf, Calls>(kMostLists);
  return recent.of(AskedCalls{blocks, limits, T, S, device}, 1, [&] {
    return std::make_shared<const std::vector<PackedCall>>(
        make_calls(blocks, limits, T, S, device));
  });
}

void make_zeros(at::Tensor& total, const at::Tensor& like) {
  if (total.defined()) return;
  total = at::zeros(like.sizes(), like.options().dtype(at::toOpMathType(like.scalar_type())));
}

// Adds to the gradient of `x`, which is undefined until the first addition.
void add(at::Tensor& total, const at::Tensor& x, const Segments& segments, const at::Tensor& part) {
  if (!total.defined() && segments.are_all) {
    total = part.to(at::toOpMathType(x.scalar_type()));
    return;
  }
  make_zeros(total, x);
  segments.add(part, total);
}

}  // namespace

Segments::Segments(const std::vector<std::pair<int64_t, int64_t>>& ranges, int64_t num_tokens,
                   at::Device device) {
  std::vector<int32_t> ends{0};
  bool are_consecutive = true;
  first = ranges.empty() ? 0 : ranges.front().first;
  for (auto [begin, length] : ranges) {
    are_consecutive = are_consecutive && begin == first + total;
    total += length;
    longest = std::max(longest, length);
    ends.push_back(static_cast<int32_t>(total));
  }
  boundaries = sent_to(at::tensor(ends, at::kInt), device);
  are_all = are_consecutive && total == num_tokens;
  if (are_consecutive) return;
  std::vector<int64_t> tokens;
  tokens.reserve(total);
  for (auto [begin, length] : ranges) {
    for (int64_t i = 0; i < length; ++i) tokens.push_back(begin + i);
  }
  index = sent_to(at::tensor(tokens, at::kLong), device);
}

at::Tensor Segments::gather(const at::Tensor& x, int64_t dim) const {
  return index.defined() ? x.index_select(dim, index) : x.narrow(dim, first, total).contiguous();
}

void Segments::scatter(const at::Tensor& part, const at::Tensor& to, int64_t dim) const {
  if (index.defined()) {
    to.index_copy_(dim, index, part);
  } else {
    to.narrow(dim, first, total).copy_(part);
  }
}

void Segments::add(const at::Tensor& part, const at::Tensor& to) const {
  if (index.defined()) {
    to.index_add_(0, index, part.to(to.scalar_type()));
  } else {
    to.narrow(0, first, total).add_(part);
  }
}

std::optional<int64_t> PackedCall::left() const {
  return window_left < 0 ? std::nullopt : std::optional(window_left);
}

std::optional<int64_t> PackedCall::right() const {
  return window_left < 0 ? std::nullopt : std::optional<int64_t>(causal ? 0 : -1);
}

AttentionResult forward_packed(const at::Tensor& q_TNH, const at::Tensor& k_SMH,
                               const at::Tensor& v_SMH, const std::vector<Block>& blocks,
                               const CallLimits& limits, int64_t head_dim,
                               const PackedForward& forward) {
  const at::Tensor q = with_head_dim(q_TNH, head_dim), k = with_head_dim(k_SMH, head_dim),
                   v = with_head_dim(v_SMH, head_dim);
  const int64_t T = q.size(0), N = q.size(1), value_dim = v_SMH.size(2);
  AttentionResult result;
  result.out_TNH = at::zeros_like(q, at::MemoryFormat::Contiguous);
  result.lse_NT = at::full({N, T}, -std::numeric_limits<double>::infinity(),
                           q.options().dtype(at::toOpMathType(q.scalar_type())));
  const Calls calls = calls_of(blocks, limits, T, k.size(0), q.device());
  for (const PackedCall& call : *calls) {
    auto [out, lse] =
        forward(call, call.queries.gather(q), call.keys.gather(k), call.keys.gather(v));
    if (call.queries.are_all) return {without_padding(out, value_dim), lse};
    call.queries.scatter(out, result.out_TNH);
    call.queries.scatter(lse, result.lse_NT, 1);
  }
  result.out_TNH = without_padding(result.out_TNH, value_dim);
  return result;
}

AttentionGradients backward_packed(const AttentionGradientInputs& inputs,
                                   const std::vector<Block>& blocks, const CallLimits& limits,
                                   int64_t head_dim, const PackedBackward& backward) {
  const at::Tensor dout = with_head_dim(inputs.dout_TNH, head_dim),
                   q = with_head_dim(inputs.q_TNH, head_dim),
                   k = with_head_dim(inputs.k_SMH, head_dim),
                   v = with_head_dim(inputs.v_SMH, head_dim),
                   out = with_head_dim(inputs.out_TNH, head_dim);
  AttentionGradients sums;
  const Calls calls = calls_of(blocks, limits, q.size(0), k.size(0), q.device());
  for (const PackedCall& call : *calls) {
    auto [dq, dk, dv] =
        backward(call, {call.queries.gather(dout), call.queries.gather(q), call.keys.gather(k),
                        call.keys.gather(v), call.queries.gather(out),
                        call.queries.gather(inputs.lse_NT, 1)});
    add(sums.dq_TNH, q, call.queries, dq);
    add(sums.dk_SMH, k, call.keys, dk);
    add(sums.dv_SMH, v, call.keys, dv);
  }
  make_zeros(sums.dq_TNH, q);
  make_zeros(sums.dk_SMH, k);
  make_zeros(sums.dv_SMH, v);
  return {without_padding(sums.dq_TNH, inputs.q_TNH.size(2)),
          without_padding(sums.dk_SMH, inputs.k_SMH.size(2)),
          without_padding(sums.dv_SMH, inputs.v_SMH.size(2))};
}

}  // namespace longspan
