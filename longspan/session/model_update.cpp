#include "longspan/session/model_update.h"

#include <ATen/ops/empty.h>

#include <utility>

#include "longspan/memory/host_memory.h"
#include "longspan/optim/gradient_norm.h"
#include "longspan/optim/optimizer_job.h"
#include "longspan/registers/update_rule.h"

namespace longspan {
ModelUpdate::ModelUpdate(std::vector<NamedTensor> parameters, const ParameterTable& specs,
                         ShardedParameters* sharded, WholeGradientSums* sums,
                         const OptimizationSettings& config, bool offload)
    : parameters_(std::move(parameters)), sharded_(sharded), sums_(sums) {
  shards_ = sharded_ ? sharded_->shards() : unsharded_parameters(parameters_, specs);
  for (ParameterShard& shard : shards_) {
    shard.rate_factor = learning_rate_factor(shard.spec, config.loraplus_lr_ratio);
  }
  const UpdateRule& rule = update_rule_of(config);
  // The device of the update.
  const at::Device device = parameters_.at(0).tensor.device();
  const auto allocate = [offload, device](const at::Tensor& like) {
    return offload ? empty_on_host(like.sizes(), like.scalar_type(), device)
                   : at::empty(like.sizes(), like.options().device(device));
  };
  const auto is_wanted = [&rule](const ParameterSpec& spec) { return rule.wants_whole(spec); };
  OverWholeMatrices over_whole_matrices;
  if (sharded_) {
    over_whole_matrices = [sharded = sharded_, is_wanted](const WholeWork& work) {
      sharded->over_wholes(is_wanted, work);
    };
  } else {
    over_whole_matrices = [shards = shards_, is_wanted](const WholeWork& work) {
      over_unsharded_parameters(
          shards, [&](const ParameterShard& shard) { return is_wanted(shard.spec); }, work);
    };
  }
  optimizer_ = rule.make({config, shards_, allocate, over_whole_matrices});
}

std::vector<NamedTensor> ModelUpdate::trained() const {
  std::vector<NamedTensor> trained;
  for (const ParameterShard& shard : shards_) trained.push_back({shard.parameter, shard.values});
  return trained;
}

void ModelUpdate::end_backward() {
  if (packed_) packed_->end_backward();
  if (sharded_) sharded_->end_backward();
}

void ModelUpdate::begin_last_row() {
  if (sharded_) sharded_->begin_last_row();
  if (sums_) sums_->begin_last_row();
}

void ModelUpdate::start_sums() {
  if (sharded_) sharded_->start_sums();
  if (sums_) sums_->start_sums();
}

double ModelUpdate::sum_gradients() {
  if (sharded_) {
    sharded_->finish_gradients();
    return sharded_->gradient_norm();
  }
  if (sums_) sums_->finish();
  return global_gradient_norm(parameters_);
}

void ModelUpdate::clip(double norm, double max_norm) {
  if (!sharded_) return clip_gradients(parameters_, norm, max_norm);
  const double factor = max_norm / (norm + 1e-6);
  if (factor < 1.0) sharded_->scale_gradients(factor);
}

void ModelUpdate::step(double learning_rate) {
  optimizer_->step(learning_rate);
  drop_gradients();
  publish();
}

void ModelUpdate::drop_gradients() {
  if (sharded_) return sharded_->drop_gradients();
  if (sums_) sums_->abandon();
  for (NamedTensor& parameter : parameters_) parameter.tensor.mutable_grad().reset();
}

void ModelUpdate::publish() {
  if (sharded_) sharded_->publish();
}

}  // namespace longspan
