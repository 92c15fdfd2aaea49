#include "longspan/optim/optimizer.h"

#include <ATen/core/grad_mode.h>

#include <utility>

namespace longspan {

std::vector<ParameterShard> unsharded_parameters(const std::vector<NamedTensor>& parameters,
                                                 const ParameterTable& specs) {
  std::vector<ParameterShard> shards;
  for (const auto& [name, tensor] : parameters) {
    if (!tensor.requires_grad()) continue;
    shards.push_back({name, 0, tensor.numel(), tensor, specs.of(name)});
  }
  return shards;
}

double learning_rate_factor(const ParameterSpec& parameter,
                            std::optional<double> loraplus_lr_ratio) {
  const bool faster = parameter.role == ParameterRole::kLoraB || parameter.shape.size() == 1;
  return faster ? loraplus_lr_ratio.value_or(1.0) : 1.0;
}

void require_same_run(const StateShard& state, const ParameterShard& trained) {
  TORCH_CHECK(state.parameter == trained.parameter && state.begin == trained.begin &&
                  state.end == trained.end,
              "state of ", state.parameter, " for ", trained.parameter);
}

void load_master(const StateShard& state, const ParameterShard& trained) {
  const at::NoGradGuard no_grad;
  const auto master = state.tensors.find("master");
  if (master == state.tensors.end()) return;
  trained.values.copy_(master->second.view(trained.values.sizes()));
}

StateSource with_master(StateSource source, const at::Tensor& values) {
  source.dtypes["master"] = values.scalar_type();
  source.make = [make = std::move(source.make), values = values.detach()] {
    StateShard shard = make();
    shard.tensors["master"] = values.flatten();
    return shard;
  };
  return source;
}

void over_unsharded_parameters(const std::vector<ParameterShard>& shards,
                               const std::function<bool(const ParameterShard& shard)>& is_wanted,
                               const WholeWork& work) {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < shards.size(); ++i) {
    if (!is_wanted(shards[i])) continue;
    work.use(i,
             work.make(i).to(shards[i].values.device(), work.dtype).reshape(shards[i].spec.shape));
  }
}

}  // namespace longspan
