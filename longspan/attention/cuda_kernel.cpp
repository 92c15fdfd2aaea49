// ATen's flash attention on CUDA, and cuDNN's where that is faster (cudnn_attention.h). It is
// reached through the dispatcher, so this file needs nothing of CUDA and is part of the core; the
// kernels themselves live in torch_cuda. It knows one head dim, up to 256: the shorter of keys and
// values get zeros. Blocks with lower ends are its windows. fp32, fp64 and softcaps, which it does
// not know, go to composed_attention. T: query tokens, S: key tokens, N: query heads, M: kv heads,
// H: numbers in a head.
#include <ATen/ATen.h>
#include <ATen/ops/_flash_attention_backward.h>
#include <ATen/ops/_flash_attention_forward.h>
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <tuple>

#include "longspan/attention/block_kernel.h"
#include "longspan/attention/composed_attention.h"
#include "longspan/attention/cudnn_attention.h"
#include "longspan/attention/equal_dims.h"
#include "longspan/memory/out_of_memory.h"
#include "longspan/memory/transfer.h"

namespace longspan {
namespace {

constexpr int64_t kMostFlashDim = 256;

// Where the blocks of one call lie in queries or keys.
struct Segments {
  at::Tensor boundaries;  // int32 cu_seqlens on the device
  at::Tensor index;       // tokens to gather; undefined when they are [0, total) as they are
  int64_t longest = 0, total = 0;

  Segments(const std::vector<std::pair<int64_t, int64_t>>& ranges, int64_t num_tokens,
           at::Device device) {
    std::vector<int32_t> ends{0};
    bool in_place = true;
    for (auto [begin, length] : ranges) {
      in_place = in_place && begin == total;
      total += length;
      longest = std::max(longest, length);
      ends.push_back(static_cast<int32_t>(total));
    }
    boundaries = sent_to(at::tensor(ends, at::kInt), device);
    if (in_place && total == num_tokens) return;
    std::vector<int64_t> tokens;
    tokens.reserve(total);
    for (auto [begin, length] : ranges) {
      for (int64_t i = 0; i < length; ++i) tokens.push_back(begin + i);
    }
    index = sent_to(at::tensor(tokens, at::kLong), device);
  }

  at::Tensor gather(const at::Tensor& x, int64_t dim = 0) const {
    return index.defined() ? x.index_select(dim, index) : x.contiguous();
  }
};

struct Call {
  Segments queries, keys;
  bool causal;
  int64_t window_left;  // keys that a query sees before the one it is aligned with; -1: all

  std::optional<int64_t> left() const {
    return window_left < 0 ? std::nullopt : std::optional(window_left);
  }
  // Where the left is given, so is the right.
  std::optional<int64_t> right() const {
    return window_left < 0 ? std::nullopt : std::optional<int64_t>(causal ? 0 : -1);
  }
};

// The kernel takes one causal flag and one window for all its segments.
std::vector<Call> make_calls(const std::vector<Block>& blocks, int64_t T, int64_t S,
                             at::Device device) {
  struct Ranges {
    std::vector<std::pair<int64_t, int64_t>> queries, keys;
  };
  std::map<std::pair<bool, int64_t>, Ranges, std::greater<>> by_kind;
  for (const Block& whole : aligned_at_end(blocks)) {
    // Where the last query sees a key, its window does not end before it.
    const Block block = whole.lower ? trimmed(whole) : whole;
    if (block.q_length == 0 || block.k_length == 0) continue;
    // Query i is aligned with key i + k_length - q_length.
    const int64_t left = block.lower ? block.k_length - block.q_length - *block.lower : -1;
    TORCH_CHECK(!block.lower || left >= 0, "attention: a window that ends before its queries");
    Ranges& ranges = by_kind[{block.causal, left}];
    ranges.queries.emplace_back(block.q_begin, block.q_length);
    ranges.keys.emplace_back(block.k_begin, block.k_length);
  }
  std::vector<Call> calls;
  for (const auto& [kind, ranges] : by_kind) {
    calls.push_back({Segments(ranges.queries, T, device), Segments(ranges.keys, S, device),
                     kind.first, kind.second});
  }
  return calls;
}

bool same(const Block& a, const Block& b) {
  return std::tie(a.q_begin, a.q_length, a.k_begin, a.k_length, a.causal, a.offset, a.lower) ==
         std::tie(b.q_begin, b.q_length, b.k_begin, b.k_length, b.causal, b.offset, b.lower);
}

// All layers of a row attend by the same few lists of blocks, forward and backward: what they make
// is sent to the device once, for which the host must wait.
class RecentCalls {
 public:
  using Calls = std::shared_ptr<const std::vector<Call>>;

  Calls of(const std::vector<Block>& blocks, int64_t T, int64_t S, at::Device device) {
    const std::lock_guard lock(mutex_);
    const auto known = std::find_if(entries_.begin(), entries_.end(), [&](const Entry& entry) {
      return entry.T == T && entry.S == S && entry.device == device &&
             std::equal(entry.blocks.begin(), entry.blocks.end(), blocks.begin(), blocks.end(),
                        same);
    });
    if (known != entries_.end()) {
      entries_.splice(entries_.begin(), entries_, known);
    } else {
      entries_.push_front(
          {blocks, T, S, device,
           std::make_shared<const std::vector<Call>>(make_calls(blocks, T, S, device))});
      if (entries_.size() > kMostEntries) entries_.pop_back();
    }
    return entries_.front().calls;
  }

 private:
  // A ring of 8 in its two directions, of layers with a window and without. What is forgotten is
  // freed on the stream that attention runs on, which no other stream's attention reads from.
  static constexpr size_t kMostEntries = 32;
  struct Entry {
    std::vector<Block> blocks;
    int64_t T, S;
    at::Device device;
    Calls calls;
  };
  std::mutex mutex_;
  std::list<Entry> entries_;  // the last one used first
};

RecentCalls::Calls calls_of(const std::vector<Block>& blocks, int64_t T, int64_t S,
                            at::Device device) {
  // Never destroyed: the driver may be gone by then.
  static RecentCalls& recent = *new RecentCalls;
  return recent.of(blocks, T, S, device);
}

// What ATen's flash attention computes. Everything else is composed of exact operations.
bool is_for_flash(const at::Tensor& q, const AttentionSpec& spec) {
  const bool half = q.scalar_type() == at::kBFloat16 || q.scalar_type() == at::kHalf;
  return half && !spec.softcap && std::max(spec.key_dim, spec.value_dim) <= kMostFlashDim;
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
      try {
        return cudnn::forward(q, k, v, spec, blocks);
      } catch (const c10::Error& error) {
        if (is_out_of_memory(error)) throw;
        cudnn::give_up(error.what_without_backtrace());
      }
    }
    const int64_t H = std::max(spec.key_dim, spec.value_dim);
    AttentionResult result = forward_equal(with_head_dim(q, H), with_head_dim(k, H),
                                           with_head_dim(v, H), spec.scale, blocks);
    result.out_TNH = without_padding(result.out_TNH, spec.value_dim);
    return result;
  }

  AttentionGradients backward_blocks(const at::Tensor& dout, const at::Tensor& q,
                                     const at::Tensor& k, const at::Tensor& v,
                                     const at::Tensor& out, const at::Tensor& lse_NT,
                                     const AttentionSpec& spec,
                                     const std::vector<Block>& blocks) const override {
    if (!is_for_flash(q, spec)) return composed::backward(dout, q, k, v, out, lse_NT, spec, blocks);
    if (cudnn::suits(q, spec, blocks)) {
      try {
        return cudnn::backward(dout, q, k, v, out, lse_NT, spec, blocks);
      } catch (const c10::Error& error) {
        if (is_out_of_memory(error)) throw;
        cudnn::give_up(error.what_without_backtrace());
      }
    }
    const int64_t H = std::max(spec.key_dim, spec.value_dim);
    const AttentionGradients gradients =
        backward_equal(with_head_dim(dout, H), with_head_dim(q, H), with_head_dim(k, H),
                       with_head_dim(v, H), with_head_dim(out, H), lse_NT, spec.scale, blocks);
    return {without_padding(gradients.dq_TNH, spec.key_dim),
            without_padding(gradients.dk_SMH, spec.key_dim),
            without_padding(gradients.dv_SMH, spec.value_dim)};
  }

 private:
  // Of keys and values of one head dim.
  static AttentionResult forward_equal(const at::Tensor& q_TNH, const at::Tensor& k_SMH,
                                       const at::Tensor& v_SMH, double scale,
                                       const std::vector<Block>& blocks) {
    const int64_t T = q_TNH.size(0), N = q_TNH.size(1);
    AttentionResult result;
    result.out_TNH = at::zeros_like(q_TNH, at::MemoryFormat::Contiguous);
    result.lse_NT = at::full({N, T}, -std::numeric_limits<double>::infinity(),
                             q_TNH.options().dtype(at::kFloat));
    const RecentCalls::Calls calls = calls_of(blocks, T, k_SMH.size(0), q_TNH.device());
    for (const Call& call : *calls) {
      auto [out, lse, rng_state, unused, mask] = at::_flash_attention_forward(
          call.queries.gather(q_TNH), call.keys.gather(k_SMH), call.keys.gather(v_SMH),
          call.queries.boundaries, call.keys.boundaries, call.queries.longest, call.keys.longest,
          /*dropout_p=*/0.0, call.causal, /*return_debug_mask=*/false, scale, call.left(),
          call.right());
      if (!call.queries.index.defined()) return {out, lse};
      result.out_TNH.index_copy_(0, call.queries.index, out);
      result.lse_NT.index_copy_(1, call.queries.index, lse);
    }
    return result;
  }

  static AttentionGradients backward_equal(const at::Tensor& dout_TNH, const at::Tensor& q_TNH,
                                           const at::Tensor& k_SMH, const at::Tensor& v_SMH,
                                           const at::Tensor& out_TNH, const at::Tensor& lse_NT,
                                           double scale, const std::vector<Block>& blocks) {
    AttentionGradients gradients;
    // Without dropout the state of the random generator is read by nobody, but must be a tensor.
    const at::Tensor rng_state = at::zeros({2}, q_TNH.options().dtype(at::kUInt64));
    const at::Tensor unused = at::empty({0}, q_TNH.options());
    const RecentCalls::Calls calls = calls_of(blocks, q_TNH.size(0), k_SMH.size(0), q_TNH.device());
    for (const Call& call : *calls) {
      auto [dq, dk, dv] = at::_flash_attention_backward(
          call.queries.gather(dout_TNH), call.queries.gather(q_TNH), call.keys.gather(k_SMH),
          call.keys.gather(v_SMH), call.queries.gather(out_TNH), call.queries.gather(lse_NT, 1),
          call.queries.boundaries, call.keys.boundaries, call.queries.longest, call.keys.longest,
          /*dropout_p=*/0.0, call.causal, rng_state, unused, scale, call.left(), call.right());
      add(gradients.dq_TNH, q_TNH, call.queries, dq);
      add(gradients.dk_SMH, k_SMH, call.keys, dk);
      add(gradients.dv_SMH, v_SMH, call.keys, dv);
    }
    make_zeros(gradients.dq_TNH, q_TNH);
    make_zeros(gradients.dk_SMH, k_SMH);
    make_zeros(gradients.dv_SMH, v_SMH);
    return gradients;
  }

  static void make_zeros(at::Tensor& total, const at::Tensor& like) {
    if (!total.defined()) total = at::zeros(like.sizes(), like.options().dtype(at::kFloat));
  }

  // The gradient of `x`: undefined as long as nothing was added.
  static void add(at::Tensor& total, const at::Tensor& x, const Segments& segments,
                  const at::Tensor& part) {
    if (!total.defined() && !segments.index.defined()) {
      total = part.to(at::kFloat);
      return;
    }
    make_zeros(total, x);
    if (segments.index.defined()) {
      total.index_add_(0, segments.index, part.to(total.scalar_type()));
    } else {
      total.add_(part);
    }
  }
};

}  // namespace

const BlockKernel& cuda_block_kernel() {
  static const CudaKernel kernel;
  return kernel;
}

}  // namespace longspan
