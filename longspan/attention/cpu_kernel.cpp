// T: query tokens, S: key tokens, N: query heads, M: kv heads, G = N / M: query heads of a kv head,
// H: numbers in a head.
//
// Three implementations share the work. The flash attention of this folder computes fp32 and the
// backward of bf16. ATen's kernel computes fp64, the forward of bf16, and head dims that are no
// multiples of 16. Its causal mask aligns at the top left: a block with an offset becomes one block
// over the keys that all of its queries see, and one aligned block. It knows one head dim: the
// shorter heads are padded by zeros. It knows no lower ends and no softcap. These go to the flash
// attention of this folder, with bf16 cast to fp32 and heads padded by zeros, or in fp64 to
// composed_attention.
#include <ATen/ATen.h>
#include <ATen/OpMathType.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>

#include <algorithm>
#include <limits>

#include "longspan/attention/block_kernel.h"
#include "longspan/attention/composed_attention.h"
#include "longspan/attention/equal_dims.h"
#include "longspan/attention/flash/flash_attention.h"
#include "longspan/attention/merge.h"

namespace longspan {
namespace {

// ATen's kernel takes any strides but needs a contiguous head dim.
at::Tensor dense_heads(const at::Tensor& x) { return x.stride(-1) == 1 ? x : x.contiguous(); }

// ATen's layout is [batch, head, token, H], with as many key heads as query heads. Grouped-query
// attention becomes a batch of M attentions of G heads each, whose keys have stride 0 over the
// heads. So nothing is repeated in memory. With M = N or M = 1 a batch of one is enough, and ATen's
// output [1, T, N, H] is already in our layout.
struct HeadLayout {
  int64_t num_heads, num_kv_heads;
  bool one_batch() const { return num_kv_heads == num_heads || num_kv_heads == 1; }

  // [T, N, H] -> [batch, heads, T, H], a view.
  at::Tensor queries(const at::Tensor& x) const {
    if (one_batch()) return x.transpose(0, 1).unsqueeze(0);
    return x.unflatten(1, {num_kv_heads, -1}).permute({1, 2, 0, 3});
  }
  // [S, M, H] -> [batch, heads, S, H], a view.
  at::Tensor keys(const at::Tensor& x) const {
    const int64_t length = x.size(0), head_dim = x.size(2);
    if (one_batch()) {
      return x.transpose(0, 1).unsqueeze(0).expand({1, num_heads, length, head_dim});
    }
    return x.transpose(0, 1).unsqueeze(1).expand(
        {num_kv_heads, num_heads / num_kv_heads, length, head_dim});
  }
  // [N, T] -> [batch, heads, T], with heads innermost as ATen expects.
  at::Tensor lse(const at::Tensor& x) const {
    return one_batch() ? x.unsqueeze(0) : x.unflatten(0, {num_kv_heads, -1});
  }
  // [batch, heads, T, H] -> [T, N, H]: a view if one_batch(), else [T, M, G, H].
  at::Tensor from_queries(const at::Tensor& x) const {
    return one_batch() ? x.squeeze(0).transpose(0, 1) : x.permute({2, 0, 1, 3});
  }
  at::Tensor lse_from(const at::Tensor& x) const { return x.reshape({num_heads, x.size(-1)}); }
  // Sums the gradients of a kv head's queries: [batch, heads, S, H] -> [S, M, H].
  at::Tensor from_keys(const at::Tensor& x) const {
    if (num_kv_heads == num_heads) return x.squeeze(0).transpose(0, 1);
    return x.sum(1).transpose(0, 1);
  }
};

// Blocks without an offset, each query in at most one block of a list.
struct AlignedBlocks {
  std::vector<Block> first, second;
};

AlignedBlocks align(const std::vector<Block>& blocks) {
  AlignedBlocks aligned;
  for (const Block& b : blocks) {
    if (!b.causal || b.offset == 0) {
      aligned.first.push_back(b);
      continue;
    }
    const int64_t seen_by_all = std::min(b.offset, b.k_length);
    aligned.first.push_back({b.q_begin, b.q_length, b.k_begin, seen_by_all, false});
    if (seen_by_all < b.k_length) {
      aligned.second.push_back(
          {b.q_begin, b.q_length, b.k_begin + seen_by_all, b.k_length - seen_by_all, true});
    }
  }
  return aligned;
}

// Whether ATen's kernel lacks a feature that the call needs.
bool is_beyond_aten(const AttentionSpec& spec, const std::vector<Block>& blocks) {
  return spec.softcap.has_value() || have_lower_ends(blocks);
}

// Casts heads to fp32 and pads them by zeros to a head dim that flash attention takes.
at::Tensor for_flash(const at::Tensor& x_TNH) {
  return with_head_dim(x_TNH.to(at::kFloat), (x_TNH.size(2) + 15) / 16 * 16);
}

class CpuKernel : public BlockKernel {
 public:
  KernelAbilities abilities() const override {
    return {.name = "The attention kernel of the CPU", .window = true, .softcap = true};
  }

 protected:
  AttentionResult forward_round(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                const AttentionSpec& spec,
                                const std::vector<Block>& blocks) const override {
    if (flash::supports(q, v)) return flash::forward(q, k, v, spec, blocks);
    if (is_beyond_aten(spec, blocks)) {
      if (q.scalar_type() == at::kDouble) return composed::forward(q, k, v, spec, blocks);
      AttentionResult result =
          flash::forward(for_flash(q), for_flash(k), for_flash(v), spec, blocks);
      result.out_TNH = without_padding(result.out_TNH, spec.value_dim).to(q.scalar_type());
      return result;
    }
    const int64_t H = std::max(spec.key_dim, spec.value_dim);
    const at::Tensor q_TNH = with_head_dim(q, H), k_SMH = with_head_dim(k, H),
                     v_SMH = with_head_dim(v, H);
    const AlignedBlocks aligned = align(blocks);
    AttentionResult result = forward_aligned(q_TNH, k_SMH, v_SMH, spec.scale, aligned.first);
    if (!aligned.second.empty()) {
      result.out_TNH = result.out_TNH.to(result.lse_NT.scalar_type());
      merge_(result, forward_aligned(q_TNH, k_SMH, v_SMH, spec.scale, aligned.second));
      result.out_TNH = result.out_TNH.to(q.scalar_type());
    }
    result.out_TNH = without_padding(result.out_TNH, spec.value_dim);
    return result;
  }

  AttentionGradients backward_blocks(const AttentionGradientInputs& inputs,
                                     const AttentionSpec& spec,
                                     const std::vector<Block>& blocks) const override {
    const auto& [dout, q, k, v, out, lse_NT] = inputs;
    if (flash::supports(q, v)) return flash::backward(inputs, spec, blocks);
    if (is_beyond_aten(spec, blocks)) {
      if (q.scalar_type() == at::kDouble) return composed::backward(inputs, spec, blocks);
      const AttentionGradients gradients = flash::backward(
          {for_flash(dout), for_flash(q), for_flash(k), for_flash(v), for_flash(out), lse_NT}, spec,
          blocks);
      return {without_padding(gradients.dq_TNH, spec.key_dim),
              without_padding(gradients.dk_SMH, spec.key_dim),
              without_padding(gradients.dv_SMH, spec.value_dim)};
    }
    if (q.scalar_type() == at::kBFloat16) {
      // Flash attention returns fp32 gradients, which are needed anyway. ATen's gradients have as
      // many kv heads as query heads.
      const at::Tensor wide_q = q.to(at::kFloat), wide_v = v.to(at::kFloat);
      if (flash::supports(wide_q, wide_v)) {
        return flash::backward(
            {dout.to(at::kFloat), wide_q, k.to(at::kFloat), wide_v, out.to(at::kFloat), lse_NT},
            spec, blocks);
      }
    }
    AlignedBlocks aligned = align(blocks);
    aligned.first.insert(aligned.first.end(), aligned.second.begin(), aligned.second.end());
    const int64_t H = std::max(spec.key_dim, spec.value_dim);
    const AttentionGradients gradients =
        backward_aligned({with_head_dim(dout, H), with_head_dim(q, H), with_head_dim(k, H),
                          with_head_dim(v, H), with_head_dim(out, H), lse_NT},
                         spec.scale, aligned.first);
    return {without_padding(gradients.dq_TNH, spec.key_dim),
            without_padding(gradients.dk_SMH, spec.key_dim),
            without_padding(gradients.dv_SMH, spec.value_dim)};
  }

 private:
  static AttentionResult forward_aligned(const at::Tensor& q, const at::Tensor& k,
                                         const at::Tensor& v, double scale,
                                         const std::vector<Block>& blocks) {
    const at::Tensor q_TNH = dense_heads(q), k_SMH = dense_heads(k), v_SMH = dense_heads(v);
    const int64_t T = q_TNH.size(0), N = q_TNH.size(1), H = q_TNH.size(2);
    const HeadLayout layout{N, k_SMH.size(1)};
    const at::ScalarType accumulate = at::toOpMathType(q_TNH.scalar_type());

    AttentionResult result;
    int64_t num_covered = 0;
    for (const Block& block : blocks) num_covered += block.k_length > 0 ? block.q_length : 0;
    const bool whole = blocks.size() == 1 && num_covered == T;
    if (!whole) {
      result.out_TNH = at::empty({T, N, H}, q_TNH.options());
      result.lse_NT = at::empty({N, T}, q_TNH.options().dtype(accumulate));
      if (num_covered < T) {
        result.out_TNH.zero_();
        result.lse_NT.fill_(-std::numeric_limits<double>::infinity());
      }
    }
    for (const Block& block : blocks) {
      if (block.q_length == 0 || block.k_length == 0) continue;
      auto [out, lse] = at::_scaled_dot_product_flash_attention_for_cpu(
          layout.queries(q_TNH.narrow(0, block.q_begin, block.q_length)),
          layout.keys(k_SMH.narrow(0, block.k_begin, block.k_length)),
          layout.keys(v_SMH.narrow(0, block.k_begin, block.k_length)), /*dropout_p=*/0.0,
          block.causal, /*attn_mask=*/{}, scale);
      at::Tensor block_out = layout.from_queries(out);
      at::Tensor block_lse = layout.lse_from(lse);
      if (whole) {
        result.out_TNH = block_out.reshape({T, N, H});
        result.lse_NT = block_lse;
      } else {
        result.out_TNH.narrow(0, block.q_begin, block.q_length).view_as(block_out).copy_(block_out);
        result.lse_NT.narrow(1, block.q_begin, block.q_length).copy_(block_lse);
      }
    }
    return result;
  }

  static AttentionGradients backward_aligned(const AttentionGradientInputs& inputs, double scale,
                                             const std::vector<Block>& blocks) {
    // ATen sums gradients in the dtype of q, one term for each 256 queries or 512 keys. In bf16 the
    // error would grow with the length of the row.
    const at::ScalarType accumulate = at::toOpMathType(inputs.q_TNH.scalar_type());
    auto widen = [&](const at::Tensor& x) { return dense_heads(x.to(accumulate)); };
    const at::Tensor dout_TNH = widen(inputs.dout_TNH), q_TNH = widen(inputs.q_TNH),
                     k_SMH = widen(inputs.k_SMH), v_SMH = widen(inputs.v_SMH),
                     out_TNH = widen(inputs.out_TNH), &lse_NT = inputs.lse_NT;
    const int64_t T = q_TNH.size(0), N = q_TNH.size(1), H = q_TNH.size(2);
    const int64_t S = k_SMH.size(0), M = k_SMH.size(1);
    const HeadLayout layout{N, M};

    AttentionGradients gradients;
    const bool whole =
        blocks.size() == 1 && blocks[0].q_length == T && blocks[0].k_length == S && T > 0 && S > 0;
    if (!whole) {
      gradients.dq_TNH = at::zeros({T, N, H}, q_TNH.options());
      gradients.dk_SMH = at::zeros({S, M, H}, q_TNH.options());
      gradients.dv_SMH = at::zeros({S, M, H}, q_TNH.options());
    }
    for (const Block& block : blocks) {
      if (block.q_length == 0 || block.k_length == 0) continue;
      auto queries = [&](const at::Tensor& x) {
        return layout.queries(x.narrow(0, block.q_begin, block.q_length));
      };
      auto keys = [&](const at::Tensor& x) {
        return layout.keys(x.narrow(0, block.k_begin, block.k_length));
      };
      auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
          queries(dout_TNH), queries(q_TNH), keys(k_SMH), keys(v_SMH), queries(out_TNH),
          layout.lse(lse_NT.narrow(1, block.q_begin, block.q_length)), /*dropout_p=*/0.0,
          block.causal, /*attn_mask=*/{}, scale);
      at::Tensor block_dq = layout.from_queries(dq);
      if (whole) {
        gradients = {block_dq.reshape({T, N, H}), layout.from_keys(dk), layout.from_keys(dv)};
      } else {
        gradients.dq_TNH.narrow(0, block.q_begin, block.q_length).view_as(block_dq).add_(block_dq);
        gradients.dk_SMH.narrow(0, block.k_begin, block.k_length).add_(layout.from_keys(dk));
        gradients.dv_SMH.narrow(0, block.k_begin, block.k_length).add_(layout.from_keys(dv));
      }
    }
    return gradients;
  }
};

}  // namespace

const BlockKernel& cpu_block_kernel() {
  static const CpuKernel kernel;
  return kernel;
}

}  // namespace longspan
