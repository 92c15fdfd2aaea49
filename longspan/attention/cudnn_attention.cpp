// T: query tokens, S: key tokens, N: query heads, M: kv heads, H: head dim, L: tokens of a block
// with its padding.
#include "longspan/attention/cudnn_attention.h"

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <ATen/ops/_cudnn_attention_backward.h>
#include <ATen/ops/_cudnn_attention_forward.h>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <tuple>

#include "longspan/attention/call_plan.h"
#include "longspan/attention/refusals.h"
#include "longspan/cuda/driver.h"
#include "longspan/text/deferred_warnings.h"

namespace longspan::cudnn {
namespace {

constexpr int64_t kCudnnMostHeadDim = 128, kHeadDimMultiple = 8;
constexpr int kCudnnHopper = 90;

/// True if cuDNN has refused a call that takes() accepted. From then on cuDNN takes nothing.
std::atomic<bool>& refused_by_cudnn() {
  static std::atomic<bool> value = false;
  return value;
}

std::atomic<bool>& is_for_cpus() {
  static std::atomic<bool> value = false;
  return value;
}

/// True if the device's cuDNN is faster than ATen's flash attention.
bool is_fast_on(at::Device device) {
  return device.is_cuda() ? cuda::capability_or_0(device.index()) >= kCudnnHopper
                          : is_for_cpus().load();
}

int64_t filled_up(const Block& block, int64_t length) {
  return block.causal ? cudnn_length(length) : length;
}

/// Returns tokens of a block as cuDNN takes them, [1, N, L, H]: a view where no padding is needed.
at::Tensor part(const at::Tensor& x_TNH, int64_t begin, int64_t length, int64_t L) {
  at::Tensor rows = x_TNH.narrow(0, begin, length);
  if (L > length) rows = at::constant_pad_nd(rows, {0, 0, 0, 0, 0, L - length});
  return rows.transpose(0, 1).unsqueeze(0);
}

/// [1, N, L, H] -> [length, N, H]
at::Tensor rows_of(const at::Tensor& x_1NLH, int64_t length) {
  return x_1NLH.squeeze(0).transpose(0, 1).narrow(0, 0, length);
}

struct CudnnPart {
  int64_t Lq, Lk;
  at::Tensor q, k, v;

  CudnnPart(const Block& block, const at::Tensor& q_TNH, const at::Tensor& k_SMH,
            const at::Tensor& v_SMH)
      : Lq(filled_up(block, block.q_length)),
        Lk(filled_up(block, block.k_length)),
        q(part(q_TNH, block.q_begin, block.q_length, Lq)),
        k(part(k_SMH, block.k_begin, block.k_length, Lk)),
        v(part(v_SMH, block.k_begin, block.k_length, Lk)) {}
};

}  // namespace

void give_up(const std::string& reason) {
  if (refused_by_cudnn().exchange(true)) return;
  defer_warning(fmt::format(
      "warning: cuDNN refuses attention ({}). ATen's flash attention computes it instead.",
      reason));
}

bool takes(const at::Tensor& q_TNH, const AttentionSpec& spec) {
  const bool half = q_TNH.scalar_type() == at::kBFloat16 || q_TNH.scalar_type() == at::kHalf;
  return half && !spec.softcap && spec.key_dim == spec.value_dim &&
         spec.key_dim <= kCudnnMostHeadDim && spec.key_dim % kHeadDimMultiple == 0 &&
         !at::globalContext().deterministicAlgorithms() && !refused_by_cudnn() &&
         is_fast_on(q_TNH.device());
}

ForCpus::ForCpus() : had_refused_(refused_by_cudnn().exchange(false)) { is_for_cpus() = true; }
ForCpus::~ForCpus() {
  is_for_cpus() = false;
  refused_by_cudnn() = had_refused_;
}

int64_t most_tokens(std::initializer_list<at::Tensor> of_tokens) {
  int64_t widest = 1;
  for (const at::Tensor& x : of_tokens) {
    widest = std::max({widest, x.stride(0), x.size(1) * x.size(2)});
  }
  return most_tokens(widest);
}

int64_t most_tokens(int64_t token_numbers) {
  return std::numeric_limits<int32_t>::max() / token_numbers;
}

void forward(const at::Tensor& q_TNH, const at::Tensor& k_SMH, const at::Tensor& v_SMH,
             const AttentionSpec& spec, const std::vector<Block>& blocks, AttentionResult& result) {
  const int64_t T = q_TNH.size(0), N = q_TNH.size(1);
  for (const Block& block : blocks) {
    const CudnnPart part(block, q_TNH, k_SMH, v_SMH);
    const auto all = with_second_try(q_TNH.device(), [&] {
      return at::_cudnn_attention_forward(
          part.q, part.k, part.v, /*attn_bias=*/{}, /*cum_seq_q=*/{}, /*cum_seq_k=*/{}, part.Lq,
          part.Lk, /*compute_log_sumexp=*/true, /*dropout_p=*/0.0, block.causal,
          /*return_debug_mask=*/false, spec.scale);
    });
    const at::Tensor out = rows_of(std::get<0>(all), block.q_length);
    const at::Tensor lse = std::get<1>(all).view({N, part.Lq}).narrow(1, 0, block.q_length);
    if (block.q_length == T) {
      result = {out.contiguous(), lse.contiguous()};
      return;
    }
    if (!result.out_TNH.defined()) {
      result = {at::zeros(q_TNH.sizes(), q_TNH.options()),
                at::full({N, T}, -std::numeric_limits<double>::infinity(), lse.options())};
    }
    result.out_TNH.narrow(0, block.q_begin, block.q_length).copy_(out);
    result.lse_NT.narrow(1, block.q_begin, block.q_length).copy_(lse);
  }
}

void backward(const AttentionGradientInputs& inputs, const AttentionSpec& spec,
              const std::vector<Block>& blocks, AttentionGradients& sums) {
  const auto& [dout_TNH, q_TNH, k_SMH, v_SMH, out_TNH, lse_NT] = inputs;
  const auto fp32 = q_TNH.options().dtype(at::kFloat);
  // Without dropout no kernel reads the random generator's state, but it must be given.
  const at::Tensor seed = at::zeros({1}, q_TNH.options().dtype(at::kLong));
  const at::Tensor none;
  for (const Block& block : blocks) {
    const CudnnPart own(block, q_TNH, k_SMH, v_SMH);
    at::Tensor lse = lse_NT.narrow(1, block.q_begin, block.q_length);
    if (own.Lq > block.q_length) lse = at::constant_pad_nd(lse, {0, own.Lq - block.q_length});
    const auto [dq, dk, dv] = with_second_try(q_TNH.device(), [&] {
      return at::_cudnn_attention_backward(
          part(dout_TNH, block.q_begin, block.q_length, own.Lq), own.q, own.k, own.v,
          part(out_TNH, block.q_begin, block.q_length, own.Lq),
          lse.contiguous().view({1, -1, own.Lq, 1}), seed, seed, none, none, none, own.Lq, own.Lk,
          /*dropout_p=*/0.0, block.causal, spec.scale);
    });
    const at::Tensor parts[] = {rows_of(dq, block.q_length), rows_of(dk, block.k_length),
                                rows_of(dv, block.k_length)};
    if (!sums.dq_TNH.defined() && blocks.size() == 1 && block.q_length == q_TNH.size(0) &&
        block.k_length == k_SMH.size(0)) {
      sums = {parts[0].to(at::kFloat).contiguous(), parts[1].to(at::kFloat).contiguous(),
              parts[2].to(at::kFloat).contiguous()};
      return;
    }
    if (!sums.dq_TNH.defined()) {
      sums = {at::zeros(q_TNH.sizes(), fp32), at::zeros(k_SMH.sizes(), fp32),
              at::zeros(v_SMH.sizes(), fp32)};
    }
    sums.dq_TNH.narrow(0, block.q_begin, block.q_length).add_(parts[0]);
    sums.dk_SMH.narrow(0, block.k_begin, block.k_length).add_(parts[1]);
    sums.dv_SMH.narrow(0, block.k_begin, block.k_length).add_(parts[2]);
  }
}

}  // namespace longspan::cudnn
