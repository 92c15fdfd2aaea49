// An attention kernel that measures another kernel.
#pragma once

#include <memory>
#include <vector>

#include "longspan/attention/block_kernel.h"

namespace longspan {

/// Work of a kernel. `seconds`: on a GPU the time between two events of the stream; on a CPU
/// processor time of the calling thread, since ranks may outnumber cores. `pairs`: pairs of a query
/// and a key that the query sees, over all query heads.
struct KernelWork {
  double seconds = 0;
  double pairs = 0;
};

/// Returns another kernel's results and adds up its work.
class MeasuredKernel : public BlockKernel {
 public:
  explicit MeasuredKernel(const BlockKernel& kernel);
  ~MeasuredKernel() override;

  KernelAbilities abilities() const override { return kernel_.abilities(); }

  /// Return the work since the last call. The host waits for a GPU that is still computing.
  KernelWork take_forward() const;
  KernelWork take_backward() const;

 protected:
  AttentionResult forward_round(const at::Tensor& q_TNH, const at::Tensor& k_SMH,
                                const at::Tensor& v_SMH, const AttentionSpec& spec,
                                const std::vector<Block>& blocks) const override;
  AttentionGradients backward_blocks(const AttentionGradientInputs& inputs,
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
