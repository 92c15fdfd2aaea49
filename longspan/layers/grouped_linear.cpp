#include "longspan/layers/grouped_linear.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <functional>

namespace longspan {
namespace {

using Pick = std::function<at::Tensor(const Linear&)>;

std::vector<at::Tensor> all_of(const std::vector<const Linear*>& experts, const Pick& pick) {
  std::vector<at::Tensor> all;
  all.reserve(experts.size());
  for (const Linear* expert : experts) all.push_back(pick(*expert));
  return all;
}

bool are_alike(const at::Tensor& a, const at::Tensor& b) {
  return a.defined() == b.defined() &&
         (!a.defined() || (a.sizes() == b.sizes() && a.scalar_type() == b.scalar_type() &&
                           a.requires_grad() == b.requires_grad()));
}

/// Returns the layer whose parameters get the gradients.
const Linear& held_of(const Linear& layer) { return layer.cast_of ? *layer.cast_of : layer; }

bool can_read(const at::Tensor& matrix) { return !matrix.defined() || grouped::can_read(matrix); }

}  // namespace

bool GroupedLinear::can_group(const std::vector<const Linear*>& experts) {
  const Linear& first = *experts.at(0);
  return std::ranges::all_of(experts, [&](const Linear* expert) {
    return expert->first_output == 0 && (!expert->has_adapter() || !expert->dropout.active()) &&
           !expert->magnitude.defined() && are_alike(expert->weight, first.weight) &&
           are_alike(expert->bias, first.bias) && are_alike(expert->lora_a, first.lora_a) &&
           are_alike(expert->lora_b, first.lora_b) && expert->lora_scale == first.lora_scale &&
           can_read(expert->weight) && can_read(expert->bias) && can_read(expert->lora_a) &&
           (!expert->has_adapter() || can_read(expert->own_lora_b()));
  });
}

GroupedLinear::GroupedLinear(const std::vector<const Linear*>& experts, GroupTable& table,
                             bool trains)
    : table_(table), lora_scale_(experts.at(0)->lora_scale) {
  const Linear& first = *experts[0];
  const auto parameter = [&](const Pick& pick) { return table.add(all_of(experts, pick)); };
  weight_ = parameter([](const Linear& layer) { return layer.weight; });
  if (first.bias.defined()) bias_ = parameter([](const Linear& layer) { return layer.bias; });
  if (first.has_adapter()) {
    num_inner_ = first.lora_a.size(0);
    lora_a_ = parameter([](const Linear& layer) { return layer.lora_a; });
    lora_b_ = parameter([](const Linear& layer) { return layer.own_lora_b(); });
  }
  if (!trains) return;
  const Linear& held = held_of(first);
  if (held.weight.requires_grad()) {
    dweight_ = parameter([](const Linear& layer) { return gradient_of(held_of(layer).weight); });
  }
  if (held.bias.defined() && held.bias.requires_grad()) {
    dbias_ = parameter([](const Linear& layer) { return gradient_of(held_of(layer).bias); });
  }
  if (held.has_adapter() && held.lora_a.requires_grad()) {
    dlora_a_ = parameter([](const Linear& layer) { return gradient_of(held_of(layer).lora_a); });
    dlora_b_ = parameter([](const Linear& layer) {
      return held_of(layer).own_rows_of(gradient_of(held_of(layer).lora_b));
    });
  }
}

at::Tensor GroupedLinear::inner(const PickedRows& x, const SortedRows& sorted) const {
  if (!lora_a_) return {};
  at::Tensor inner_SR = at::empty({sorted.num_rows, num_inner_}, x.x.options());
  grouped::forward_out(inner_SR, {}, sorted, {{x, at(*lora_a_)}}, {}, lora_scale_);
  return inner_SR;
}

at::Tensor GroupedLinear::inner_gradient(const PickedRows& dy, const SortedRows& sorted) const {
  if (!lora_b_) return {};
  at::Tensor inner_SR = at::empty({sorted.num_rows, num_inner_}, dy.x.options());
  grouped::input_gradient_out(inner_SR, {}, sorted, {{dy, at(*lora_b_)}}, lora_scale_);
  return inner_SR;
}

void GroupedLinear::forward_out(at::Tensor& y, const at::Tensor& to_S, const PickedRows& x,
                                const SortedRows& sorted) const {
  std::vector<GroupedOperands> operands{{x, at(weight_)}};
  if (lora_b_) operands.push_back({{inner(x, sorted)}, at(*lora_b_)});
  grouped::forward_out(y, to_S, sorted, operands, bias_ ? std::optional(at(*bias_)) : std::nullopt);
}

void GroupedLinear::append_input_operands(std::vector<GroupedOperands>& operands,
                                          const PickedRows& dy, const at::Tensor& inner) const {
  operands.push_back({dy, at(weight_)});
  if (lora_a_) operands.push_back({{inner}, at(*lora_a_)});
}

void GroupedLinear::add_gradients(const PickedRows& dy, const at::Tensor& inner_of_dy,
                                  const PickedRows& x, const SortedRows& sorted) const {
  if (dweight_) grouped::add_matrix_gradients(at(*dweight_), sorted, dy, x);
  if (!dlora_a_) return;
  grouped::add_matrix_gradients(at(*dlora_b_), sorted, dy, {inner(x, sorted)});
  grouped::add_matrix_gradients(at(*dlora_a_), sorted, {inner_of_dy}, x);
}

void GroupedLinear::add_bias_gradients(const PickedRows& dy, const at::Tensor& weights_S,
                                       const SortedRows& sorted) const {
  if (dbias_) grouped::add_bias_gradients(at(*dbias_), sorted, dy, weights_S);
}

void GroupedLinear::add_bias_dots(at::Tensor& dots, const at::Tensor& to_S, const PickedRows& dy,
                                  const SortedRows& sorted) const {
  if (bias_) grouped::add_dots_(dots, to_S, sorted, dy, at(*bias_));
}

}  // namespace longspan
