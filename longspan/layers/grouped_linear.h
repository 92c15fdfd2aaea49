// The same linear layer of several experts, of rows that are sorted by expert
// (kernels/grouped_gemm.h). S: rows of all experts, I, O: its input and output dim, R: inner dim of
// a LoRA adapter.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "longspan/kernels/grouped_gemm.h"
#include "longspan/kernels/linear.h"

namespace longspan {

/// Computes what Linear computes, of each row by the layer of its expert. Parameters are read as
/// they are held; fp32 ones are rounded to bf16 on the way.
class GroupedLinear {
 public:
  /// Whether the kernels read all of these: of one shape and dtype, adapters without dropout.
  static bool can_group(const std::vector<const Linear*>& experts);

  /// Asks `table` for where the parameters are, and with `trains` for their gradients, which it
  /// makes of zeros where there are none. Used once the table is sent.
  GroupedLinear(const std::vector<const Linear*>& experts, GroupTable& table, bool trains);

  bool has_bias() const { return bias_.has_value(); }
  /// What an adapter makes of x before its B, [S, R], scaled; undefined without one.
  at::Tensor inner(const PickedRows& x, const SortedRows& sorted) const;
  /// The same of an output gradient before its A.
  at::Tensor inner_gradient(const PickedRows& dy, const SortedRows& sorted) const;
  /// y[to_S] = x W^T + b + ...
  void forward_out(at::Tensor& y, const at::Tensor& to_S, const PickedRows& x,
                   const SortedRows& sorted) const;
  /// Adds the products that make dy W + ...: `inner` is that of dy.
  void append_input_products(std::vector<GroupedProduct>& products, const PickedRows& dy,
                             const at::Tensor& inner) const;
  /// To the trained ones of weight and adapter.
  void add_gradients(const PickedRows& dy, const at::Tensor& inner_of_dy, const PickedRows& x,
                     const SortedRows& sorted) const;
  /// To the bias, where it is trained: the sum of weights_S * dy.
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
  size_t weight_ = 0;  // numbers of the table
  std::optional<size_t> bias_, lora_a_, lora_b_;
  std::optional<size_t> dweight_, dbias_, dlora_a_, dlora_b_;
};

}  // namespace longspan
