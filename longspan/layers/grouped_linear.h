// The same linear layer of several experts, for rows sorted by expert (kernels/grouped_gemm.h). S:
// rows of all experts, I, O: the layer's input and output dim, R: inner dim of a LoRA adapter.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "longspan/kernels/grouped_gemm.h"
#include "longspan/kernels/linear.h"

namespace longspan {

/// Computes Linear for each row by the layer of its expert. Reads parameters in their dtype, and
/// rounds fp32 parameters to bf16 when it reads them. Gradients are those of Linear::cast_of where
/// it is set.
class GroupedLinear {
 public:
  /// True if the kernels can read all these layers: they have one shape and dtype, and no adapter
  /// has dropout.
  static bool can_group(const std::vector<const Linear*>& experts);

  /// Registers the parameters with `table`. With `trains`, also registers the gradients, and
  /// creates missing gradients as zeros. The caller must send the table before use.
  GroupedLinear(const std::vector<const Linear*>& experts, GroupTable& table, bool trains);

  bool has_bias() const { return bias_.has_value(); }
  /// Returns the adapter's x A^T, scaled, [S, R]; undefined without an adapter.
  at::Tensor inner(const PickedRows& x, const SortedRows& sorted) const;
  /// Returns the adapter's dy B, scaled, [S, R].
  at::Tensor inner_gradient(const PickedRows& dy, const SortedRows& sorted) const;
  /// y[to_S] = x W^T + b + ...
  void forward_out(at::Tensor& y, const at::Tensor& to_S, const PickedRows& x,
                   const SortedRows& sorted) const;
  /// Appends the operands of the products whose sum is dy W + ... `inner`: inner_gradient() of dy.
  void append_input_operands(std::vector<GroupedOperands>& operands, const PickedRows& dy,
                             const at::Tensor& inner) const;
  /// Adds gradients of weight and adapter, where they are trained.
  void add_gradients(const PickedRows& dy, const at::Tensor& inner_of_dy, const PickedRows& x,
                     const SortedRows& sorted) const;
  /// Adds the sum of weights_S * dy to the bias's gradient, where it is trained.
  void add_bias_gradients(const PickedRows& dy, const at::Tensor& weights_S,
                          const SortedRows& sorted) const;
  /// dots[to_S] += dy . b
  void add_bias_dots(at::Tensor& dots, const at::Tensor& to_S, const PickedRows& dy,
                     const SortedRows& sorted) const;

 private:
  GroupMatrices at(size_t number) const { return table_.at(number); }

  const GroupTable& table_;
  double lora_scale_ = 0.0;
  int64_t num_inner_ = 0;
  size_t weight_ = 0;  // indices in the table
  std::optional<size_t> bias_, lora_a_, lora_b_;
  std::optional<size_t> dweight_, dbias_, dlora_a_, dlora_b_;
};

}  // namespace longspan
