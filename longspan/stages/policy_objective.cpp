#include "longspan/stages/policy_objective.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <span>
#include <utility>

#include "longspan/base/names.h"
#include "longspan/base/user_error.h"
#include "longspan/comm/differentiable.h"
#include "longspan/memory/transfer.h"
#include "longspan/objectives/policy.h"
#include "longspan/rollouts/advantages.h"
#include "longspan/rollouts/rollout_examples.h"
#include "longspan/settings/preference_settings.h"
#include "longspan/stages/kept_logprobs.h"
#include "longspan/stages/step_values.h"

namespace longspan {
namespace {

PolicyOptions options_of(const PolicySettings& settings) {
  return {.loss = policy_loss_of(settings),
          .epsilon_low = settings.epsilon,
          .epsilon_high = settings.epsilon_high.value_or(settings.epsilon),
          .delta = settings.delta,
          .beta = settings.beta,
          .corrects_kl = settings.use_bias_correction_kl,
          .max_ratio = settings.importance_sampling_clip_max,
          .min_ratio = settings.importance_sampling_clip_min,
          .fixed_length = settings.max_completion_length};
}

/// Returns the values of a column at the tokens that predict the row's labels; undefined: the row
/// has no such column.
at::Tensor column_L(const Row& row, const char* name) {
  const auto column = row.local.columns.find(name);
  if (column == row.local.columns.end()) return {};
  return column->second.values.index_select(0, label_rows(row.local)).to(at::kDouble);
}

/// Returns the quantile with linear interpolation between neighbours, as torch.quantile, which
/// takes at most 2^24 numbers.
double quantile(std::vector<double> numbers, double share) {
  if (numbers.empty()) return 0;
  std::ranges::sort(numbers);
  const double place = share * static_cast<double>(numbers.size() - 1);
  const auto below = static_cast<size_t>(place);
  const size_t above = std::min(below + 1, numbers.size() - 1);
  return std::lerp(numbers[below], numbers[above], place - static_cast<double>(below));
}

/// The settings of a loss whose advantages are a teacher's.
PolicySettings with_teacher(PolicySettings settings) {
  settings.loss_type = "dapo";
  settings.advantage_estimator = "reward";
  settings.kl_estimator = "k1";
  settings.kl_in_reward = false;
  settings.beta = 0;
  return settings;
}

enum class AdvantagesFrom { kRewards, kTeacher };

class PolicyObjective : public Objective {
 public:
  PolicyObjective(const ObjectiveContext& context, AdvantagesFrom from)
      : context_(context),
        from_(from),
        settings_(from == AdvantagesFrom::kTeacher ? with_teacher(context.preferences.policy)
                                                   : context.preferences.policy),
        options_(options_of(settings_)),
        estimator_(options_.loss.advantages),
        scale_(reward_scale_named(settings_.scale_rewards)) {}

  Documents documents() const override { return Documents::kRollouts; }
  double weight(const Row& row) const override {
    return policy_weight(options_.loss.kind.mean, row.num_documents(), count_labels(row.whole));
  }
  bool replicated() const override { return true; }

  bool precomputes() const override {
    return context_.reference != nullptr || keeps_old() || chooses() || of_batch();
  }

  void begin() override {
    references_.clear();
    rewards_.clear();
    entropies_.clear();
  }

  void precompute(const Row& row) override {
    const c10::NoGradGuard no_grad;
    at::Tensor policy_L;
    if (keeps_old() || chooses() || takes_kl_from_reward()) {
      const TokenScores scores = scores_of(row, chooses());
      policy_L = scores.logprobs_L;
      if (chooses()) entropies_.push_back(scores.entropies_L);
    }
    if (keeps_old() && !old_.has(row)) {
      // The first update on a batch forgets the rollouts of earlier batches.
      if (old_is_used_) old_.clear();
      old_is_used_ = false;
      old_.keep(row, policy_L, context_.attention, context_.mesh.sequence);
    }
    if (context_.reference != nullptr) {
      references_.push_back(context_.reference->token_logprobs(row, settings_.rollout_temperature));
    }
    rewards_.push_back(rewards_of(row, policy_L));
  }

  void end_precompute() override {
    old_is_used_ = true;
    if (chooses()) threshold_ = entropy_threshold();
    if (of_batch()) advantages_ = advantages_of_batch();
  }

  at::Tensor loss(const Row& row, size_t row_number, double total_weight,
                  Averages& averages) override {
    const int64_t D = row.num_documents();
    const TokenScores scores = scores_of(row, /*entropies=*/true);
    const at::Tensor rows_L = label_rows(row.local);
    const BatchAdvantages advantages =
        of_batch() ? advantages_.at(row_number)
                   : advantages_of(precomputes() ? rewards_[row_number] : rewards_of(row, {}),
                                   estimator_, scale_);
    PolicyRow terms_of{.logprobs_L = scores.logprobs_L,
                       .advantages_L = {},
                       .documents_L = row.local.documents_T.index_select(0, rows_L),
                       .labels_D = sent_to(document_label_counts(row.whole, D), context_.device)};
    if (keeps_old()) terms_of.old_L = old_.of(row, context_.attention);
    if (from_ == AdvantagesFrom::kTeacher) {
      terms_of.reference_L = column_L(row, kTeacherLogprobs);
      if (!terms_of.reference_L.defined()) {
        throw UserError("a row of stage distill needs the column \"teacher_logprob\"");
      }
      const at::Tensor& before_L = keeps_old() ? terms_of.old_L : scores.logprobs_L;
      terms_of.advantages_L = terms_of.reference_L - before_L.detach();
    } else {
      terms_of.advantages_L = column_L(row, kAdvantage);
    }
    if (!terms_of.advantages_L.defined()) {
      std::vector<double> all;
      all.reserve(D);
      for (const std::vector<double>& group : advantages.of_groups) {
        all.insert(all.end(), group.begin(), group.end());
      }
      if (std::ssize(all) != D) {
        throw UserError(
            "a row of stage grpo needs Example::rewards for each document, or the column "
            "\"advantage\"");
      }
      terms_of.advantages_L = sent_to(at::tensor(all, at::kDouble), context_.device)
                                  .index_select(0, terms_of.documents_L);
    }
    if (context_.reference != nullptr) terms_of.reference_L = references_[row_number];
    if (options_.loss.correction.corrects) terms_of.sampler_L = column_L(row, kSamplerLogprobs);
    if (chooses()) terms_of.chosen_L = entropies_[row_number].ge(threshold_).to(at::kDouble);
    const PolicyTerms terms = policy_terms(terms_of, options_, over_row());
    log(row, advantages, scores, terms, averages);
    // A step whose rollouts are all left out has no label.
    return terms.loss / std::max(1.0, total_weight);
  }

  std::string state() const override {
    return keeps_old() ? old_.text(context_.mesh) : std::string();
  }
  void resume(const std::string& state) override {
    old_.load(state);
    old_is_used_ = true;
  }

  std::vector<std::string> averages() const override {
    std::vector<std::string> names;
    if (from_ == AdvantagesFrom::kRewards) {
      names = {"reward", "reward_std", "frac_reward_zero_std"};
      for (const std::string& name : split_names(settings_.rewards)) names.push_back(mean_of(name));
    }
    if (context_.reference != nullptr || from_ == AdvantagesFrom::kTeacher) {
      names.emplace_back("kl");
    }
    names.insert(names.end(), {"entropy", "clip_ratio/low_mean", "clip_ratio/high_mean",
                               "completions/mean_length", "completions/clipped_ratio"});
    if (options_.loss.correction.corrects) {
      names.insert(names.end(), {"sampling/logp_difference", "sampling/importance_ratio"});
    }
    return names;
  }

 private:
  /// TRL's name of the mean of a reward function.
  static std::string mean_of(const std::string& reward) {
    return fmt::format("rewards/{}/mean", reward);
  }

  using RowRewards = std::vector<RewardedGroup>;  // of the row's examples

  bool of_batch() const {
    return estimator_.scale == AdvantageScale::kWhitened ||
           (estimator_.scale == AdvantageScale::kChosen && scale_ == RewardScale::kBatch);
  }
  bool keeps_old() const { return settings_.num_iterations > 1; }
  bool chooses() const { return settings_.top_entropy_quantile < 1; }
  bool takes_kl_from_reward() const {
    return context_.reference != nullptr && options_.loss.kl_in_reward;
  }
  SumOver over_row() const {
    return [this](const at::Tensor& x) { return sum_over(x, context_.mesh.sequence); };
  }
  TokenScores scores_of(const Row& row, bool entropies) const {
    return context_.model.token_scores(
        row.local, {.temperature = settings_.rollout_temperature, .entropies = entropies});
  }

  /// Returns the rewards of a row's documents, less KL if KL is part of the reward. Empty for
  /// examples whose documents have advantages.
  RowRewards rewards_of(const Row& row, const at::Tensor& policy_L) const {
    RowRewards groups;
    const at::Tensor labels_D = document_label_counts(row.whole, row.num_documents());
    const double* num_labels = labels_D.const_data_ptr<double>();
    for (const ExamplePointer& example : row.examples) {
      if (example->rewards.empty()) continue;
      RewardedGroup& group = groups.emplace_back(
          RewardedGroup{fmt::format("{}", example->number), example->rewards, {}});
      for (size_t i = 0; i < example->rewards.size(); ++i) {
        group.num_labels.push_back(std::llround(*num_labels++));
      }
    }
    if (!takes_kl_from_reward() || groups.empty()) return groups;
    const at::Tensor old_L = keeps_old() ? old_.of(row, context_.attention) : policy_L;
    const at::Tensor kl_L = kl_estimate(old_L, references_.back(), options_.loss.kl);
    const at::Tensor kl_D =
        sum_over(
            at::zeros({row.num_documents()}, kl_L.options())
                .index_add(0, row.local.documents_T.index_select(0, label_rows(row.local)), kl_L),
            context_.mesh.sequence)
            .cpu();
    const double* kl = kl_D.const_data_ptr<double>();
    for (RewardedGroup& group : groups) {
      for (double& reward : group.rewards) reward -= options_.beta * *kl++;
    }
    return groups;
  }

  /// Returns the advantages of each row, with statistics of all rows of the step.
  std::vector<BatchAdvantages> advantages_of_batch() const {
    std::vector<double> own;
    double num_groups = 0;
    for (const RowRewards& row : rewards_) {
      for (const RewardedGroup& group : row) {
        ++num_groups;
        own.push_back(static_cast<double>(group.rewards.size()));
        own.insert(own.end(), group.rewards.begin(), group.rewards.end());
        own.insert(own.end(), group.num_labels.begin(), group.num_labels.end());
      }
    }
    const Group& data = context_.mesh.data;
    const std::vector<double> counts = values_of(data, {num_groups}, context_.device),
                              all = values_of(data, own, context_.device);
    std::vector<RewardedGroup> groups;
    for (auto next = all.begin(); next != all.end();) {
      const auto size = static_cast<int64_t>(*next++);
      groups.push_back({fmt::format("{}", groups.size()), {next, next + size}, {}});
      next += size;
      for (int64_t i = 0; i < size; ++i) groups.back().num_labels.push_back(std::llround(*next++));
    }
    const BatchAdvantages batch = advantages_of(groups, estimator_, scale_);
    auto begin = batch.of_groups.begin();
    for (int rank = 0; rank < data.rank(); ++rank) begin += std::llround(counts[rank]);
    std::vector<BatchAdvantages> rows;
    for (const RowRewards& row : rewards_) {
      rows.push_back({{begin, begin + std::ssize(row)}, batch.zero_std_share});
      begin += std::ssize(row);
    }
    return rows;
  }

  /// Returns the quantile of the entropies of all labels of the step.
  double entropy_threshold() const {
    std::vector<double> own;
    for (const at::Tensor& entropies_L : entropies_) {
      const at::Tensor here = entropies_L.cpu().contiguous();
      own.insert(own.end(), here.const_data_ptr<double>(),
                 here.const_data_ptr<double>() + here.numel());
    }
    std::vector<double> all = values_of(context_.mesh.world, own, context_.device);
    return quantile(std::move(all), 1 - settings_.top_entropy_quantile);
  }

  void log(const Row& row, const BatchAdvantages& advantages, const TokenScores& scores,
           const PolicyTerms& terms, Averages& averages) const {
    if (row.examples.empty()) return;
    const double num_labels = static_cast<double>(count_labels(row.whole));
    std::vector<std::pair<std::string, at::Tensor>> sums{
        {"entropy", sum_over(scores.entropies_L.sum(), context_.mesh.sequence)},
        {"clip_ratio/low_mean", terms.clipped_low},
        {"clip_ratio/high_mean", terms.clipped_high}};
    if (terms.kl.defined()) sums.emplace_back("kl", terms.kl);
    if (terms.mismatch.defined()) {
      sums.emplace_back("sampling/logp_difference", terms.mismatch);
      sums.emplace_back("sampling/importance_ratio", terms.correction);
    }
    averages.add(sums, num_labels);
    const double D = static_cast<double>(row.num_documents());
    averages.add("completions/mean_length", num_labels, D);
    double num_truncated = 0;
    for (const ExamplePointer& example : row.examples) {
      num_truncated += static_cast<double>(example->num_truncated);
    }
    averages.add("completions/clipped_ratio", num_truncated, D);
    if (from_ == AdvantagesFrom::kTeacher) return;
    for (const ExamplePointer& example : row.examples) {
      if (example->rewards.empty()) continue;
      const RewardSpread spread = spread_of_rewards(example->rewards);
      const auto size = static_cast<double>(example->rewards.size());
      averages.add("reward", spread.mean * size, size);
      averages.add("reward_std", spread.std, 1);
      averages.add("frac_reward_zero_std", advantages.zero_std_share, 1);
      for (const auto& [name, sum] : example->reward_sums) averages.add(mean_of(name), sum, size);
    }
  }

  ObjectiveContext context_;
  AdvantagesFrom from_;
  PolicySettings settings_;
  PolicyOptions options_;
  const AdvantageEstimatorKind& estimator_;
  RewardScale scale_;
  std::vector<at::Tensor> references_;       // per row of the step, [L]
  std::vector<RowRewards> rewards_;          // per row of the step
  std::vector<at::Tensor> entropies_;        // per row of the step, [L]
  double threshold_ = 0;                     // of entropies
  std::vector<BatchAdvantages> advantages_;  // per row of the step, if of_batch()
  KeptLogprobs old_;                         // before the first update on the batch
  bool old_is_used_ = false;
};

}  // namespace

std::unique_ptr<Objective> make_policy_objective(const ObjectiveContext& context) {
  return std::make_unique<PolicyObjective>(context, AdvantagesFrom::kRewards);
}

std::unique_ptr<Objective> make_sampled_distillation(const ObjectiveContext& context) {
  return std::make_unique<PolicyObjective>(context, AdvantagesFrom::kTeacher);
}

}  // namespace longspan
