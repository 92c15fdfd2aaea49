// ATen's flash attention on CUDA. It is reached through the dispatcher, so this file needs nothing
// of CUDA and is part of the core; the kernels themselves live in torch_cuda.
// Compiled and linked; not yet run on a GPU.
// It knows one head dim, up to 256: the shorter of keys and values get zeros. Blocks with lower
// ends are its windows. It knows no softcap: those go to composed_attention. T: query tokens, S:
// key tokens, N: query heads, M: kv heads, H: numbers in a head.
#include <ATen/ATen.h>
#include <ATen/ops/_flash_attention_backward.h>
#include <ATen/ops/_flash_attention_forward.h>
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <tuple>

#include "longspan/attention/block_kernel.h"
#include "longspan/attention/composed_attention.h"
#include "longspan/attention/equal_dims.h"
#include "longspan/config/user_error.h"

namespace longspan {
namespace {

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
    boundaries = at::tensor(ends, at::kInt).to(device);
    if (in_place && total == num_tokens) return;
    std::vector<int64_t> tokens;
    tokens.reserve(total);
    for (auto [begin, length] : ranges) {
      for (int64_t i = 0; i < length; ++i) tokens.push_back(begin + i);
    }
    index = at::tensor(tokens, at::kLong).to(device);
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
std::vector<Call> calls_of(const std::vector<Block>& blocks, int64_t T, int64_t S,
                           at::Device device) {
  struct Ranges {
    std::vector<std::pair<int64_t, int64_t>> queries, keys;
  };
  std::map<std::pair<bool, int64_t>, Ranges, std::greater<>> by_kind;
  for (const Block& block : aligned_at_end(blocks)) {
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

void check_dtype(const at::Tensor& q) {
  if (q.scalar_type() != at::kBFloat16 && q.scalar_type() != at::kHalf) {
    throw UserError(
        fmt::format("Flash attention on CUDA computes in 16 bits, but the model runs in "
                    "{}. Set bf16: true.",
                    c10::toString(q.scalar_type())));
  }
}

class CudaKernel : public BlockKernel {
 public:
  KernelAbilities abilities() const override {
    return {.name = "The attention kernel of CUDA",
            .window = true,
            .softcap = true,
            .most_head_dim = 256};
  }

 protected:
  AttentionResult forward_round(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                const AttentionSpec& spec,
                                const std::vector<Block>& blocks) const override {
    check_dtype(q);
    if (spec.softcap) return composed::forward(q, k, v, spec, blocks);
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
    check_dtype(q);
    if (spec.softcap) return composed::backward(dout, q, k, v, out, lse_NT, spec, blocks);
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
    for (const Call& call : calls_of(blocks, T, k_SMH.size(0), q_TNH.device())) {
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
    AttentionGradients gradients{at::zeros(q_TNH.sizes(), q_TNH.options().dtype(at::kFloat)),
                                 at::zeros(k_SMH.sizes(), k_SMH.options().dtype(at::kFloat)),
                                 at::zeros(v_SMH.sizes(), v_SMH.options().dtype(at::kFloat))};
    // Without dropout the state of the random generator is read by nobody, but must be a tensor.
    const at::Tensor rng_state = at::zeros({2}, q_TNH.options().dtype(at::kUInt64));
    const at::Tensor unused = at::empty({0}, q_TNH.options());
    for (const Call& call : calls_of(blocks, q_TNH.size(0), k_SMH.size(0), q_TNH.device())) {
      auto [dq, dk, dv] = at::_flash_attention_backward(
          call.queries.gather(dout_TNH), call.queries.gather(q_TNH), call.keys.gather(k_SMH),
          call.keys.gather(v_SMH), call.queries.gather(out_TNH), call.queries.gather(lse_NT, 1),
          call.queries.boundaries, call.keys.boundaries, call.queries.longest, call.keys.longest,
          /*dropout_p=*/0.0, call.causal, rng_state, unused, scale, call.left(), call.right());
      add(gradients.dq_TNH, call.queries, dq);
      add(gradients.dk_SMH, call.keys, dk);
      add(gradients.dv_SMH, call.keys, dv);
    }
    return gradients;
  }

  static void add(at::Tensor& total, const Segments& segments, const at::Tensor& part) {
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
