#include "longspan/train/model_update.h"

#include <ATen/ops/empty.h>

#include <utility>

#include "longspan/memory/host_memory.h"
#include "longspan/optim/adamw_8bit.h"
#include "longspan/optim/gradient_norm.h"
#include "longspan/train/gradient_reduction.h"

namespace longspan {
namespace {

std::unique_ptr<Optimizer> make_optimizer(const Config& config,
                                          const std::vector<ParameterPiece>& pieces,
                                          at::Device device) {
  const AdamWOptions options{.beta1 = config.adam_beta1,
                             .beta2 = config.adam_beta2,
                             .epsilon = config.adam_epsilon,
                             .weight_decay = config.weight_decay};
  // Where the update runs.
  const AllocateLike allocate = [offload = config.offload_optimizer,
                                 device](const at::Tensor& like) {
    return offload ? empty_on_host(like.sizes(), like.scalar_type(), device)
                   : at::empty(like.sizes(), like.options().device(device));
  };
  if (config.optim == "adamw_8bit" || config.optim == "adamw_bnb_8bit") {
    return std::make_unique<AdamW8bit>(pieces, options, allocate);
  }
  return std::make_unique<AdamW>(pieces, options, allocate);
}

}  // namespace

ModelUpdate::ModelUpdate(std::vector<NamedTensor> parameters, const ParameterTable& specs,
                         ShardedParameters* sharded, const Group& world, const Config& config)
    : parameters_(std::move(parameters)), sharded_(sharded), world_(world) {
  pieces_ = sharded_ ? sharded_->pieces() : whole_pieces(parameters_, specs);
  optimizer_ = make_optimizer(config, pieces_, parameters_.at(0).tensor.device());
}

std::vector<NamedTensor> ModelUpdate::trained() const {
  std::vector<NamedTensor> trained;
  for (const ParameterPiece& piece : pieces_) trained.push_back({piece.parameter, piece.values});
  return trained;
}

void ModelUpdate::end_backward() {
  if (sharded_) sharded_->end_backward();
}

double ModelUpdate::sum_gradients() {
  if (sharded_) {
    sharded_->finish_gradients();
    return sharded_->gradient_norm();
  }
  longspan::sum_gradients(parameters_, world_);
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
  for (NamedTensor& parameter : parameters_) parameter.tensor.mutable_grad().reset();
}

void ModelUpdate::publish() {
  if (sharded_) sharded_->publish();
}

}  // namespace longspan
