#include "longspan/layers/expert_load.h"

#include <ATen/ATen.h>

namespace longspan {

ExpertLoad::ExpertLoad(int64_t num_layers, int64_t num_experts, at::Device device)
    : counts_LE_(
          at::zeros({num_layers, num_experts}, at::TensorOptions(device).dtype(at::kDouble))),
      scores_E_(at::zeros({num_experts}, counts_LE_.options())) {}

void ExpertLoad::add(int64_t layer, const at::Tensor& counts_E, const at::Tensor& scores_E) {
  counts_LE_.select(0, layer).add_(counts_E);
  if (scores_E.defined()) scores_E_.add_(scores_E);
}

void ExpertLoad::clear() {
  counts_LE_.zero_();
  scores_E_.zero_();
}

}  // namespace longspan
