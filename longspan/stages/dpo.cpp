// dpo: pairs of answers. B: pairs of a row.
#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "longspan/comm/differentiable.h"
#include "longspan/data/stage_encoders.h"
#include "longspan/memory/transfer.h"
#include "longspan/objectives/preference.h"
#include "longspan/settings/method_settings.h"
#include "longspan/settings/preference_settings.h"
#include "longspan/stages/objective.h"
#include "longspan/stages/stage_parts.h"
#include "longspan/stages/step_values.h"

namespace longspan {
namespace {

class PairObjective : public Objective {
 public:
  explicit PairObjective(const ObjectiveContext& context)
      : context_(context),
        options_{.loss = pair_loss_from(context.preferences.pref_loss),
                 .beta = context.preferences.pref_beta,
                 .label_smoothing = context.preferences.dpo_label_smoothing,
                 .simpo_gamma = context.preferences.simpo_gamma,
                 .sft_weight = context.preferences.pref_ftx},
        kind_(kind_of(options_.loss)) {}

  Documents documents() const override {
    return context_.preferences.pref_share_prompt ? Documents::kPairs : Documents::kAll;
  }
  double weight(const Row& row) const override { return static_cast<double>(row.examples.size()); }
  bool replicated() const override { return true; }

  bool precomputes() const override { return kind_.has_reference; }

  void begin() override {
    references_.clear();
    compared_.clear();
  }

  void precompute(const Row& row) override {
    const c10::NoGradGuard no_grad;
    references_.push_back(context_.reference->document_logprobs(row, over(row)));
    if (kind_.has_baselines) compare(row, references_.back());
  }

  void end_precompute() override {
    if (kind_.has_baselines) baselines_ = step_baselines();
  }

  at::Tensor loss(const Row& row, size_t row_number, double total_weight,
                  Averages& averages) override {
    const PairScores scores =
        scores_of(row, precomputes() ? references_[row_number] : at::Tensor());
    const PairTerms terms = pair_terms(scores, options_, baselines_);
    log(scores, terms, averages);
    return terms.losses_B.sum() / total_weight;
  }

  std::vector<std::string> averages() const override {
    std::vector<std::string> names{"rewards/chosen",  "rewards/rejected", kRewardAccuracies,
                                   "rewards/margins", "logps/chosen",     "logps/rejected"};
    names.insert(names.end(), kind_.parts.begin(), kind_.parts.end());
    return names;
  }

 private:
  static SumOver over(const Row& row) {
    return [&row](const at::Tensor& x) { return sum_over(x, row.sharers()); };
  }

  PairScores scores_of(const Row& row, const at::Tensor& reference_D) const {
    const int64_t D = row.num_documents();
    const auto answers = [&](const at::Tensor& x_D, int64_t which) {
      return x_D.defined() ? x_D.view({D / 2, 2}).select(1, which) : x_D;
    };
    const at::Tensor policy_D = document_logprobs(context_.model, row.local, D, over(row));
    const at::Tensor labels_D = sent_to(document_label_counts(row.whole, D), policy_D.device());
    return {answers(policy_D, 0),    answers(policy_D, 1), answers(reference_D, 0),
            answers(reference_D, 1), answers(labels_D, 0), answers(labels_D, 1)};
  }

  /// Some losses compare with the means over all pairs of the step, which are in several rows on
  /// several ranks. The scores for such losses are computed in advance, a second time. Among the
  /// ranks that share a row, the rank at this place of the data-parallel groups keeps the scores.
  void compare(const Row& row, const at::Tensor& reference_D) {
    const PairScores scores = scores_of(row, reference_D);
    if (row.sharers().rank() != context_.mesh.sequence.rank()) return;
    compared_.push_back(at::stack({scores.chosen_B, scores.rejected_B, scores.reference_chosen_B,
                                   scores.reference_rejected_B},
                                  1));
  }

  PairBaselines step_baselines() const {
    const at::Tensor all_B4 = compared_by_all();
    const auto column = [&](int64_t i) { return all_B4.select(1, i); };
    const at::Tensor ones = at::ones({all_B4.size(0)}, all_B4.options());
    return pair_baselines({column(0), column(1), column(2), column(3), ones, ones}, options_);
  }

  /// Returns the scores of all data-parallel groups, concatenated. The counts are exchanged between
  /// hosts.
  at::Tensor compared_by_all() const {
    const auto none = at::zeros({0, 4}, at::TensorOptions(context_.device).dtype(at::kDouble));
    return gathered_rows(compared_.empty() ? none : at::cat(compared_), context_.mesh.data,
                         context_.mesh.data_hosts, at::kCPU);
  }

  void log(const PairScores& scores, const PairTerms& terms, Averages& averages) const {
    const double count = static_cast<double>(terms.losses_B.size(0));
    std::vector<std::pair<std::string, at::Tensor>> sums;
    const auto add = [&](std::string_view name, const at::Tensor& x_B) {
      sums.emplace_back(name, x_B.sum());
    };
    add("rewards/chosen", terms.chosen_rewards_B);
    add("rewards/rejected", terms.rejected_rewards_B);
    add(kRewardAccuracies, terms.chosen_rewards_B.gt(terms.rejected_rewards_B).to(at::kDouble));
    add("rewards/margins", terms.chosen_rewards_B - terms.rejected_rewards_B);
    const auto logps = [&](const at::Tensor& sums_B, const at::Tensor& labels_B) {
      return kind_.averages ? sums_B.detach() / labels_B : sums_B.detach();
    };
    add("logps/chosen", logps(scores.chosen_B, scores.chosen_labels_B));
    add("logps/rejected", logps(scores.rejected_B, scores.rejected_labels_B));
    for (size_t i = 0; i < kind_.parts.size(); ++i) add(kind_.parts[i], terms.parts_B.at(i));
    averages.add(sums, count);
  }

  ObjectiveContext context_;
  PairOptions options_;
  const PairLossKind& kind_;
  std::vector<at::Tensor> references_;  // per row of the step
  std::vector<at::Tensor> compared_;    // with baselines: per row of the step, four scores per pair
  PairBaselines baselines_;
};

/// pref_loss, and the keys of single losses.
constexpr auto kLoss = [] {
  constexpr auto kHasKey = [](const PairLossKind& kind) { return kind.own_key.has_value(); };
  std::array<std::string_view, 1 + std::ranges::count_if(kPairLosses, kHasKey)> keys{"pref_loss"};
  auto next = keys.begin() + 1;
  for (const PairLossKind& kind : kPairLosses) {
    if (kind.own_key) *next++ = kind.own_key->name;
  }
  return keys;
}();
constexpr StageKeys kLossKeys{.keys = kLoss};
constexpr const StageKeys* kKeys[] = {&kLossKeys, &kPreferenceKeys, &kReferenceKeys,
                                      &kPrecomputedKeys, &kSharedPromptKeys};

std::vector<std::string> problems(const PreferenceSettings& config, const MethodSettings& method) {
  const PreferenceSettings defaults;
  std::vector<std::string> problems;
  const auto demand = [&](bool holds, std::string_view problem) {
    if (!holds) problems.emplace_back(problem);
  };
  const PairLossKind& own = kind_of(pair_loss_from(config.pref_loss));
  for (const PairLossKind& kind : kPairLosses) {
    if (!kind.own_key || kind.loss == own.loss) continue;
    const auto& [name, value] = *kind.own_key;
    demand(config.*value == defaults.*value,
           fmt::format("{} is for pref_loss: {} only", name, kind.name));
  }
  demand(!own.has_baselines || method.lora_dropout == 0,
         fmt::format("pref_loss: {} computes each pair twice, which lora_dropout would make "
                     "different; set lora_dropout: 0",
                     own.name));
  const bool names_reference = !config.ref_model.empty() || !config.ref_model_adapters.empty() ||
                               config.precompute_ref_log_probs;
  std::vector<std::string_view> alone;
  for (const PairLossKind& kind : kPairLosses) {
    if (!kind.has_reference) alone.push_back(kind.name);
  }
  demand(!names_reference || own.has_reference,
         fmt::format("pref_loss: {} have no reference model; remove ref_model, ref_model_adapters "
                     "and precompute_ref_log_probs",
                     enumerated(alone)));
  return problems;
}

std::string summary(const PreferenceSettings& config) {
  return preference_summary("dpo, pref_loss " + config.pref_loss, config) +
         (config.pref_share_prompt ? "; prompts are computed once for both answers" : "");
}

bool compares(const PreferenceSettings& config) {
  return has_reference(pair_loss_from(config.pref_loss));
}

std::unique_ptr<Objective> make(const ObjectiveContext& context) {
  return std::make_unique<PairObjective>(context);
}

}  // namespace

extern const Stage kDpo{
    .name = "dpo",
    .title = "DPO",
    .help = "preferences",
    .keys = kKeys,
    .rows = RowKind::kPair,
    .rollouts = RolloutUse::kNone,
    .packs = false,
    .trains_all_answers = false,
    .uses_lm_head = true,
    .has_value_head = false,
    .compares_distributions = false,
    .deals_rows = true,
    .drawn = kDrawnAccuracies,
    .problems = problems,
    .encode = encode_pairs,
    .document_name = chosen_or_rejected,
    .summary = summary,
    .has_reference = compares,
    .make = make,
};

}  // namespace longspan
