#include "longspan/session/expert_balance.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>

#include <algorithm>

#include "longspan/base/user_error.h"
#include "longspan/memory/transfer.h"
#include "longspan/objectives/load_balance.h"

namespace longspan {
namespace {

// Values for a step. Loads are relative: 1 means an even load. The load of the busiest expert of a
// layer, as mean over the layers and of the worst layer; the share of experts without tokens.
constexpr const char *kLoss = "aux_loss", *kMean = "expert_load/max_mean",
                     *kWorst = "expert_load/max_worst", *kUnused = "expert_load/unused";

}  // namespace

std::optional<double> auxiliary_loss_coefficient(const OptimizationSettings& config,
                                                 const ModelConfig& model) {
  const std::optional<double> asked = config.moe_aux_loss_coef;
  const auto refuse = [&](const std::string& why) {
    throw UserError(
        fmt::format("moe_aux_loss_coef: {} is given, but {}. Remove the key.", *asked, why));
  };
  const MixtureOfExpertsSpec* experts = experts_of(model.spec);
  if (asked && experts == nullptr) refuse(model.architecture + " has no experts");
  if (asked && *asked > 0 && !traits_of(experts->router.scores).sum_to_one) {
    refuse("the auxiliary loss is for routers with a softmax; the routers of " +
           model.architecture + " have a sigmoid, and transformers has no such loss for them");
  }
  const std::optional<double> coefficient = asked ? asked : model.router_aux_loss_coef;
  return coefficient && *coefficient > 0 ? coefficient : std::nullopt;
}

std::unique_ptr<ExpertBalance> ExpertBalance::make(const OptimizationSettings& config,
                                                   const ObjectiveContext& context,
                                                   const ModelConfig& model, bool rows_vary) {
  const std::optional<double> coefficient = auxiliary_loss_coefficient(config, model);
  if (experts_of(model.spec) == nullptr) return nullptr;
  return std::make_unique<ExpertBalance>(
      context, model.spec, coefficient,
      rows_vary ? std::nullopt : std::optional(config.gradient_accumulation_steps));
}

ExpertBalance::ExpertBalance(const ObjectiveContext& context, const ModelSpec& model,
                             std::optional<double> coefficient,
                             std::optional<int64_t> rows_per_step)
    : context_(context),
      num_experts_(0),
      experts_per_token_(0),
      layers_(layers_with_experts(model)),
      coefficient_(coefficient),
      rows_per_step_(rows_per_step),
      load_(0, 0),
      ahead_(0, 0) {
  for (const int64_t layer : layers_) {
    const MixtureOfExpertsSpec& experts = *experts_of(model.layer(layer));
    TORCH_CHECK(layer == layers_.front() || (experts.num_experts == num_experts_ &&
                                             experts.experts_per_token == experts_per_token_),
                "layers with other numbers of experts than the first");
    num_experts_ = experts.num_experts;
    experts_per_token_ = experts.experts_per_token;
  }
  load_ = ExpertLoad(model.num_layers, num_experts_, context.device);
  ahead_ = ExpertLoad(model.num_layers, num_experts_, context.device);
  load_.sums_scores = coefficient_.has_value();
}

bool ExpertBalance::precomputes() const { return coefficient_ && rows_per_step_.value_or(2) > 1; }

void ExpertBalance::begin() {
  load_.clear();
  ahead_.clear();
  load_.gradient_E = at::Tensor();
}

void ExpertBalance::precompute(const Row& row) {
  const c10::NoGradGuard no_grad;
  context_.model.count_experts(&ahead_);
  context_.model.hidden_states(row.local);
  context_.model.count_experts(nullptr);
}

at::Tensor ExpertBalance::summed(const at::Tensor& counts_LE) const {
  at::Tensor sums = counts_LE.clone();
  context_.mesh.world.sum_(sums);
  return sums;
}

void ExpertBalance::end_precompute() {
  load_.gradient_E =
      load_balance_gradient(summed(ahead_.counts_LE()), experts_per_token_, *coefficient_);
}

void ExpertBalance::open() { context_.model.count_experts(&load_); }

void ExpertBalance::close() { context_.model.count_experts(nullptr); }

void ExpertBalance::count_step() {
  if (!coefficient_ || precomputes()) return;
  load_.gradient_E =
      load_balance_gradient(summed(load_.counts_LE()), experts_per_token_, *coefficient_);
}

at::Tensor ExpertBalance::loss() const {
  if (!load_.gradient_E.defined()) return {};
  return (load_.gradient_E * load_.scores_E()).sum();
}

void ExpertBalance::add_to(Averages& averages) {
  const at::Tensor layers = sent_to(at::tensor(layers_, at::kLong), context_.device);
  const at::Tensor counts_LE = summed(load_.counts_LE()).index_select(0, layers);
  const bool leads = context_.mesh.world.rank() == 0;
  if (coefficient_) {
    at::Tensor loss = at::zeros({1}, counts_LE.options());
    if (const at::Tensor own = this->loss(); own.defined()) loss.copy_(own / *coefficient_);
    context_.mesh.world.sum_(loss);
    if (leads) averages.add({{kLoss, loss.squeeze(0)}}, 1);
  }
  if (!leads) return;
  const at::Tensor load_LE = counts_LE / counts_LE.mean(1, /*keepdim=*/true).clamp_min(1e-9);
  const at::Tensor largest_L = load_LE.amax(1);
  averages.add({{kMean, largest_L.mean()},
                {kWorst, largest_L.max()},
                {kUnused, counts_LE.eq(0).to(at::kDouble).mean()}},
               1);
}

std::vector<std::string> ExpertBalance::averages() const {
  std::vector<std::string> names{kMean, kWorst, kUnused};
  if (coefficient_) names.insert(names.begin(), kLoss);
  return names;
}

}  // namespace longspan
