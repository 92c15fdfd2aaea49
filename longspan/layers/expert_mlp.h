// One expert of a mixture (mixture_of_experts.h): a gated MLP of the rows that are sent to it.
// R: rows, D: model dim, I: intermediate dim.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "longspan/kernels/linear.h"

namespace longspan {

/// Gate and up are made by a matrix each; or by one, and their numbers take turns in what it gives
/// (MixtureOfExpertsSpec::stacked).
struct ExpertMlp {
  Linear gate_proj = {}, up_proj = {};  ///< without weights where gate_up_proj has one
  Linear gate_up_proj = {};
  Linear down_proj = {};

  bool takes_turns() const { return gate_up_proj.weight.defined(); }
  /// Those that have weights.
  std::vector<Linear*> linears();
  std::vector<const Linear*> linears() const;
  /// For some rows, with parameters in their dtype; gradients are added to those of this expert.
  /// `rows_L` may be undefined where no adapter has dropout.
  ExpertMlp cast_for_uses(at::ScalarType dtype, const at::Tensor& rows_L) const;

  /// Writes gate x and up x. `both_R2I`: room for them in turns; undefined where they do not take
  /// turns.
  void gate_and_up_out(at::Tensor& gate_RI, at::Tensor& up_RI, const at::Tensor& x_RD,
                       at::Tensor both_R2I) const;
  /// Adds the gradients of the matrices that make them; d loss / d x.
  at::Tensor gate_and_up_backward(const at::Tensor& dgate_RI, const at::Tensor& dup_RI,
                                  const at::Tensor& x_RD, at::Tensor both_R2I) const;
};

/// The gates, and what goes up, of rows in which they take turns.
at::Tensor gates_of(const at::Tensor& both_R2I);
at::Tensor ups_of(const at::Tensor& both_R2I);

}  // namespace longspan
