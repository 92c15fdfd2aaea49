#include "longspan/spec/gated_mlp_spec.h"

#include <fmt/format.h>

namespace longspan {

void list_parameters(const GatedMlpSpec& mlp, LayerParameters& list) {
  const int64_t I = mlp.intermediate_size, D = list.hidden_size();
  list.linear("mlp", "gate_proj", I, D, mlp.bias);
  list.linear("mlp", "up_proj", I, D, mlp.bias);
  if (mlp.stored_as_one) list.store_together("mlp", "gate_up_proj", 2);
  list.linear("mlp", "down_proj", D, I, mlp.bias);
}

FeedForwardCost cost_of(const GatedMlpSpec& mlp, int64_t hidden_size) {
  const int64_t I = mlp.intermediate_size;
  // gate and up; in the backward also the gradient of down's input.
  return {.width = I,
          .saved = 2 * I,
          .working = 3 * I,
          .matrices = {3 * I * hidden_size, I * hidden_size},
          .cast_at_once = 3 * I * hidden_size,
          .flops = flops_of_matrices(3 * I * hidden_size)};
}

std::string sizes_in(const GatedMlpSpec& mlp) {
  return fmt::format("intermediate_size {}", mlp.intermediate_size);
}

}  // namespace longspan
