// FlashAttention 3 (arXiv 2407.08608) of the Python package flash_attn_3, where a user has
// installed it: kernels for Hopper GPUs. Its shared object registers operators with torch when it
// is loaded, which needs no Python. docs/gpu-measurements.md says what has run.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "longspan/attention/block_kernel.h"

namespace longspan::flash3 {

/// The shared object of the package in this folder of packages; empty where there is none.
std::string find_in(const std::filesystem::path& packages);
/// In the folder of packages that holds torch, which `longspan env` shows.
std::string installed();

/// An operator with a schema that is known: arguments are bound by their names, and what is not
/// given has the schema's own default.
class Operator;

/// Takes bf16 and fp16 on GPUs of compute capability 9.0.
class Kernel : public BlockKernel {
 public:
  /// The operators fwd and bwd that are registered under this namespace, of any of the published
  /// forms. Throws std::runtime_error with what is missing or not known, one clause.
  explicit Kernel(const std::string& registered_as);
  ~Kernel() override;

  KernelAbilities abilities() const override;
  /// Whether it computes this, forward or backward. `deterministic`: with the same bits each time.
  bool takes(at::ScalarType dtype, const AttentionSpec& spec, bool backward,
             bool deterministic) const;

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
  std::unique_ptr<const Operator> forward_, backward_;
};

/// Loads the shared object, for as long as the process lives. Null, with one warning, where it
/// cannot be loaded or its operators are not known; null where `path` is empty.
std::unique_ptr<const Kernel> load(const std::string& path);

/// The installed one, loaded once, where it computes this on the GPU of q; else null.
const BlockKernel* kernel_for(const at::Tensor& q, const AttentionSpec& spec, bool backward);

/// It computes nothing from now on: it has refused what it was expected to compute. Warns once.
void give_up(const std::string& reason);

}  // namespace longspan::flash3
