// The attention kernel, watched.
#pragma once

#include "longspan/attention/block_kernel.h"

namespace longspan {

/// What the kernel did. `cpu_seconds`: processor time of the calling thread inside the kernel (not
/// the time on the clock: ranks may be more than cores). `pairs`: a query and a key it sees, over
/// all query heads.
struct KernelWork {
  double cpu_seconds = 0;
  double pairs = 0;
};

/// Another kernel's results; adds up its work.
class MeasuredKernel : public BlockKernel {
 public:
  explicit MeasuredKernel(const BlockKernel& kernel) : kernel_(kernel) {}

  KernelAbilities abilities() const override { return kernel_.abilities(); }

  /// Since the last call.
  KernelWork take_forward() const;
  KernelWork take_backward() const;

 protected:
  AttentionResult forward_round(const at::Tensor& q_TNH, const at::Tensor& k_SMH,
                                const at::Tensor& v_SMH, const AttentionSpec& spec,
                                const std::vector<Block>& blocks) const override;
  AttentionGradients backward_blocks(const at::Tensor& dout_TNH, const at::Tensor& q_TNH,
                                     const at::Tensor& k_SMH, const at::Tensor& v_SMH,
                                     const at::Tensor& out_TNH, const at::Tensor& lse_NT,
                                     const AttentionSpec& spec,
                                     const std::vector<Block>& blocks) const override;

 private:
  const BlockKernel& kernel_;
  mutable KernelWork forward_, backward_;
};

}  // namespace longspan
