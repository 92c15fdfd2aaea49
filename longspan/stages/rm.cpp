// rm: a value head on the last token of each answer. B: pairs of a row.
#include <ATen/ATen.h>

#include "longspan/comm/differentiable.h"
#include "longspan/data/stage_encoders.h"
#include "longspan/objectives/document_scores.h"
#include "longspan/settings/preference_settings.h"
#include "longspan/spec/parameter_spec.h"
#include "longspan/stages/objective.h"
#include "longspan/stages/stage_parts.h"

namespace longspan {
namespace {

class RewardObjective : public Objective {
 public:
  explicit RewardObjective(const ObjectiveContext& context) : context_(context) {
    head_.dropout = context.preferences.value_head_dropout;
    for (const NamedTensor& parameter : context.model.parameters()) {
      const ParameterRole role = context.specs.of(parameter.name).role;
      if (role == ParameterRole::kValueHead) head_.weight_1D = parameter.tensor;
      if (role == ParameterRole::kValueHeadBias) head_.bias_1 = parameter.tensor;
    }
    TORCH_CHECK(head_.weight_1D.defined() && head_.bias_1.defined(),
                "a reward model needs a value head");
  }

  Documents documents() const override {
    return context_.preferences.pref_share_prompt ? Documents::kPairs : Documents::kAll;
  }
  double weight(const Row& row) const override { return static_cast<double>(row.examples.size()); }
  bool replicated() const override { return true; }

  at::Tensor loss(const Row& row, size_t, double total_weight, Averages& averages) override {
    const int64_t D = row.num_documents();
    const Batch local =
        local_share(with_labels_at_ends(row.whole, D), *row.attention, context_.device);
    const at::Tensor values_D =
        document_values(context_.model, head_, local, D,
                        [&row](const at::Tensor& x) { return sum_over(x, row.sharers()); });
    const at::Tensor pairs = values_D.view({D / 2, 2});
    const at::Tensor chosen_B = pairs.select(1, 0), rejected_B = pairs.select(1, 1);
    log(chosen_B.detach(), rejected_B.detach(), averages);
    return -at::log_sigmoid(chosen_B - rejected_B).sum() / total_weight;
  }

  std::vector<std::string> averages() const override {
    return {"rewards/chosen", "rewards/rejected", kRewardAccuracies, "rewards/margins"};
  }

 private:
  static void log(const at::Tensor& chosen_B, const at::Tensor& rejected_B, Averages& averages) {
    averages.add({{"rewards/chosen", chosen_B.sum()},
                  {"rewards/rejected", rejected_B.sum()},
                  {kRewardAccuracies, chosen_B.gt(rejected_B).to(at::kDouble).sum()},
                  {"rewards/margins", (chosen_B - rejected_B).sum()}},
                 static_cast<double>(chosen_B.size(0)));
  }

  ObjectiveContext context_;
  ValueHead head_;
};

constexpr std::string_view kHead[] = {"value_head_dropout"};
constexpr StageKeys kHeadKeys{.keys = kHead};
constexpr const StageKeys* kKeys[] = {&kSharedPromptKeys, &kHeadKeys};

std::string summary(const PreferenceSettings&) {
  return "rm: a reward model from pairs of answers";
}

std::unique_ptr<Objective> make(const ObjectiveContext& context) {
  return std::make_unique<RewardObjective>(context);
}

}  // namespace

extern const Stage kRewardModel{
    .name = "rm",
    .title = "reward models",
    .help = "reward model",
    .keys = kKeys,
    .rows = RowKind::kPair,
    .rollouts = RolloutUse::kNone,
    .packs = false,
    .trains_all_answers = false,
    .uses_lm_head = false,
    .has_value_head = true,
    .compares_distributions = false,
    .deals_rows = true,
    .drawn = kDrawnAccuracies,
    .problems = no_problems,
    .encode = encode_pairs,
    .document_name = chosen_or_rejected,
    .summary = summary,
    .has_reference = no_reference,
    .make = make,
};

}  // namespace longspan
