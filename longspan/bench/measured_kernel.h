// The attention kernel, watched.
#pragma once

#include <memory>
#include <vector>

#include "longspan/attention/block_kernel.h"

namespace longspan {

/// What the kernel did. `seconds`: on a GPU its time between two events of the stream; on a CPU
/// processor time of the calling thread (not the time on the clock: ranks may be more than cores).
/// `pairs`: a query and a key it sees, over all query heads.
struct KernelWork {
  double seconds = 0;
  double pairs = 0;
};

/// Another kernel's results; adds up its work.
class MeasuredKernel : public BlockKernel {
 public:
  explicit MeasuredKernel(const BlockKernel& kernel);
  ~MeasuredKernel() override;

  KernelAbilities abilities() const override { return kernel_.abilities(); }

  /// Since the last call. The host waits for a GPU that is still at it.
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
  struct OnDevice;
  struct Work {
    KernelWork sum;
    std::vector<std::unique_ptr<OnDevice>> on_device;  // not added to the sum yet
  };

  template <typename Pass>
  auto measured(Work& work, const at::Tensor& q_TNH, const std::vector<Block>& blocks,
                const Pass& pass) const;
  static KernelWork take(Work& work);

  const BlockKernel& kernel_;
  mutable Work forward_, backward_;
};

}  // namespace longspan
