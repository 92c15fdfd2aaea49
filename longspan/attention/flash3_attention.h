// FlashAttention 3 (arXiv 2407.08608) for Hopper GPUs, from the Python package flash_attn_3, if the
// user has installed the package. Loading the package's shared object registers its operators with
// torch, without Python.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "longspan/attention/block_kernel.h"

namespace longspan::flash3 {

/// Returns the path of the package's shared object in a folder of packages, or "" if there is none.
std::string find_in(const std::filesystem::path& packages);
/// Returns find_in() for the folder of packages that contains torch. `longspan env` shows this
/// path.
std::string installed();

/// An operator with a known schema. Arguments are bound by name. Omitted arguments have the
/// schema's defaults.
class Operator;

/// FlashAttention 3 as a BlockKernel: bf16 and fp16, on GPUs of compute capability 9.0.
class Kernel : public BlockKernel {
 public:
  /// `registered_as`: the namespace of the registered operators `fwd` and `bwd`, with any of the
  /// published schemas. Throws std::runtime_error; the message is one clause that names the missing
  /// or unknown part.
  explicit Kernel(const std::string& registered_as);
  ~Kernel() override;

  KernelAbilities abilities() const override;
  /// True if the kernel supports this pass (forward or backward). `deterministic`: results must be
  /// bit-reproducible.
  bool takes(at::ScalarType dtype, const AttentionSpec& spec, bool backward,
             bool deterministic) const;

 protected:
  AttentionResult forward_round(const at::Tensor& q_TNH, const at::Tensor& k_SMH,
                                const at::Tensor& v_SMH, const AttentionSpec& spec,
                                const std::vector<Block>& blocks) const override;
  AttentionGradients backward_blocks(const AttentionGradientInputs& inputs,
                                     const AttentionSpec& spec,
                                     const std::vector<Block>& blocks) const override;

 private:
  std::unique_ptr<const Operator> forward_, backward_;
};

/// Loads the shared object for the life of the process. Returns null and warns once if the shared
/// object cannot be loaded or its operators are unknown. Returns null if `path` is empty.
std::unique_ptr<const Kernel> load(const std::string& path);

/// Returns the installed kernel if the kernel supports this pass on the GPU of q, otherwise null.
/// The first call loads the kernel.
const BlockKernel* kernel_for(const at::Tensor& q, const AttentionSpec& spec, bool backward);

/// Makes kernel_for() return null from now on, after the kernel refused a call that takes() had
/// accepted. Warns once.
void give_up(const std::string& reason);

}  // namespace longspan::flash3
