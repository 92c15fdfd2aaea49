#include "longspan/optim/adamw.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <map>
#include <memory>
#include <string_view>
#include <utility>

#include "longspan/kernels/storage_type.h"
#include "longspan/optim/optimizer_job.h"
#include "longspan/registers/update_rule.h"

namespace longspan {

AdamWOptions adamw_options_of(const OptimizationSettings& config) {
  return {.beta1 = config.adam_beta1,
          .beta2 = config.adam_beta2,
          .epsilon = config.adam_epsilon,
          .weight_decay = config.weight_decay};
}

AdamW::AdamW(std::vector<ParameterShard> shards, const AdamWOptions& options,
             const AllocateLike& allocate)
    : options_(options) {
  const at::NoGradGuard no_grad;
  const auto zeros = [&](const at::Tensor& values) {
    return allocate ? allocate(values).zero_() : at::zeros_like(values);
  };
  for (ParameterShard& shard : shards) {
    const at::Tensor values = shard.values.detach();
    at::Tensor first = zeros(values), second = zeros(values);
    at::Tensor num_steps = at::zeros({}, first.options().dtype(at::kFloat));
    trained_.push_back(
        {std::move(shard), std::move(first), std::move(second), std::move(num_steps)});
  }
}

void AdamW::step(double learning_rate) {
  const at::NoGradGuard no_grad;
  std::map<std::pair<double, double>, std::vector<Trained*>> groups;  // by factor and decay
  for (Trained& trained : trained_) {
    if (!trained.shard.values.grad().defined()) continue;
    const double decay = trained.shard.spec.decays ? options_.weight_decay : 0.0;
    groups[{trained.shard.rate_factor, decay}].push_back(&trained);
  }
  for (const auto& [rule, group] : groups) update(group, learning_rate * rule.first, rule.second);
}

void AdamW::update(const std::vector<Trained*>& trained, double learning_rate,
                   double weight_decay) {
  std::vector<at::Tensor> values, gradients, first, second, steps;
  const auto run = [&] {
    if (values.empty()) return;
    at::_foreach_add_(steps, 1);
    at::_fused_adamw_(values, gradients, first, second, /*max_exp_avg_sqs=*/{}, steps,
                      learning_rate, options_.beta1, options_.beta2, weight_decay, options_.epsilon,
                      /*amsgrad=*/false, /*maximize=*/false);
    for (auto* list : {&values, &gradients, &first, &second, &steps}) list->clear();
  };
  for (Trained* t : trained) {
    const at::Tensor& gradient = t->shard.values.grad();
    const auto device = t->first_moment.device();
    values.push_back(t->shard.values.to(device));
    gradients.push_back(gradient.to(device));
    first.push_back(t->first_moment);
    second.push_back(t->second_moment);
    steps.push_back(t->num_steps);
    // If states live on another device: copy the parameter there, update it, copy it back.
    if (t->shard.values.device() == device) continue;
    const at::Tensor visiting = values.back();
    run();
    t->shard.values.copy_(visiting);
  }
  run();
}

std::vector<StateSource> AdamW::state() const {
  std::vector<StateSource> sources;
  for (const Trained& t : trained_) {
    const auto dtype = arithmetic_dtype(t.first_moment.scalar_type());
    // Views, unless the moments have another dtype.
    const auto make = [&t, dtype] {
      return StateShard{t.shard.parameter,
                        t.shard.begin,
                        t.shard.end,
                        std::llround(t.num_steps.item<double>()),
                        {{"exp_avg", t.first_moment.flatten().to(dtype)},
                         {"exp_avg_sq", t.second_moment.flatten().to(dtype)}}};
    };
    sources.push_back({t.shard.parameter,
                       t.shard.begin,
                       t.shard.end,
                       {{"exp_avg", dtype}, {"exp_avg_sq", dtype}},
                       make});
  }
  return sources;
}

void AdamW::load_state(size_t i, const StateShard& shard) {
  const at::NoGradGuard no_grad;
  Trained& t = trained_.at(i);
  require_same_run(shard, t.shard);
  t.first_moment.copy_(shard.tensors.at("exp_avg").view(t.first_moment.sizes()));
  t.second_moment.copy_(shard.tensors.at("exp_avg_sq").view(t.second_moment.sizes()));
  t.num_steps.fill_(static_cast<double>(shard.num_steps));
  load_master(shard, t.shard);
}

void AdamW::zero_grad() {
  for (Trained& t : trained_) t.shard.values.mutable_grad().reset();
}

namespace {

constexpr std::string_view kNames[] = {"adamw_torch", "adamw_torch_fused"};

/// Two moments: in the dtype of the values in memory, in fp32 in files.
int64_t state_bytes(const HeldParameter& parameter) { return 2 * parameter.num_bytes(); }
int64_t saved_bytes(const HeldParameter& parameter) {
  return 2 * 4 * parameter.spec.num_elements();
}

std::unique_ptr<Optimizer> make(const OptimizerJob& job) {
  return std::make_unique<AdamW>(job.shards, adamw_options_of(job.config), job.allocate);
}

}  // namespace

extern const UpdateRule kAdamW{
    .names = kNames,
    .help = "AdamW",
    .wants_whole = wants_nothing_whole,
    .state_bytes = state_bytes,
    .saved_bytes = saved_bytes,
    .working_bytes = works_in_place,
    .make = make,
};

}  // namespace longspan
