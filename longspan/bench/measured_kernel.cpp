#include "longspan/bench/measured_kernel.h"

#include <time.h>

#include <utility>

namespace longspan {
namespace {

double thread_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

}  // namespace

AttentionResult MeasuredKernel::forward_round(const at::Tensor& q_TNH, const at::Tensor& k_SMH,
                                              const at::Tensor& v_SMH, const AttentionSpec& spec,
                                              const std::vector<Block>& blocks) const {
  const double begin = thread_seconds();
  AttentionResult result = kernel_.forward(q_TNH, k_SMH, v_SMH, spec, blocks);
  forward_.cpu_seconds += thread_seconds() - begin;
  forward_.pairs += pairs_of(blocks) * static_cast<double>(q_TNH.size(1));
  return result;
}

AttentionGradients MeasuredKernel::backward_blocks(
    const at::Tensor& dout_TNH, const at::Tensor& q_TNH, const at::Tensor& k_SMH,
    const at::Tensor& v_SMH, const at::Tensor& out_TNH, const at::Tensor& lse_NT,
    const AttentionSpec& spec, const std::vector<Block>& blocks) const {
  const double begin = thread_seconds();
  AttentionGradients gradients =
      kernel_.backward(dout_TNH, q_TNH, k_SMH, v_SMH, out_TNH, lse_NT, spec, blocks);
  backward_.cpu_seconds += thread_seconds() - begin;
  backward_.pairs += pairs_of(blocks) * static_cast<double>(q_TNH.size(1));
  return gradients;
}

KernelWork MeasuredKernel::take_forward() const { return std::exchange(forward_, {}); }
KernelWork MeasuredKernel::take_backward() const { return std::exchange(backward_, {}); }

}  // namespace longspan
