// One expert of a mixture (mixture_of_experts.h): a gated MLP for the rows of the expert. R: rows,
// D: model dim, I: intermediate dim.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "longspan/kernels/linear.h"

namespace longspan {

/// Gate and up have one matrix each; or one matrix with interleaved outputs
/// (MixtureOfExpertsSpec::stacked).
struct ExpertMlp {
  Linear gate_proj = {}, up_proj = {};  ///< without weights where gate_up_proj has them
  Linear gate_up_proj = {};
  Linear down_proj = {};

  bool takes_turns() const { return gate_up_proj.weight.defined(); }
  /// The linear layers that have weights.
  std::vector<Linear*> linears();
  std::vector<const Linear*> linears() const;
  /// Returns a copy of the expert for some rows, with parameters in `dtype`. The backward of the
  /// copy adds gradients to this expert's parameters. `rows_L` may be undefined where no adapter
  /// has dropout.
  ExpertMlp cast_for_uses(at::ScalarType dtype, const at::Tensor& rows_L) const;

  /// Writes gate x and up x. `both_R2I`: memory for the interleaved outputs; undefined where there
  /// are two matrices.
  void gate_and_up_out(at::Tensor& gate_RI, at::Tensor& up_RI, const at::Tensor& x_RD,
                       at::Tensor both_R2I) const;
  /// Adds the gradients of the matrices of gate and up. Returns d loss / d x.
  at::Tensor gate_and_up_backward(const at::Tensor& dgate_RI, const at::Tensor& dup_RI,
                                  const at::Tensor& x_RD, at::Tensor both_R2I) const;
};

/// gates_of() returns the gates of interleaved outputs, ups_of() the ups.
at::Tensor gates_of(const at::Tensor& both_R2I);
at::Tensor ups_of(const at::Tensor& both_R2I);

}  // namespace longspan
