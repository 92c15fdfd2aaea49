// kto: single answers, each desirable or not. B: answers of a row.
#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>

#include <algorithm>

#include "longspan/comm/differentiable.h"
#include "longspan/data/stage_encoders.h"
#include "longspan/memory/transfer.h"
#include "longspan/objectives/kto.h"
#include "longspan/settings/preference_settings.h"
#include "longspan/stages/objective.h"
#include "longspan/stages/stage_parts.h"

namespace longspan {
namespace {

class KtoObjective : public Objective {
 public:
  explicit KtoObjective(const ObjectiveContext& context)
      : context_(context),
        options_{.beta = context.preferences.pref_beta,
                 .desirable_weight = context.preferences.kto_chosen_weight,
                 .undesirable_weight = context.preferences.kto_rejected_weight,
                 .sft_weight = context.preferences.pref_ftx} {}

  Documents documents() const override { return Documents::kFirst; }
  double weight(const Row& row) const override { return static_cast<double>(row.examples.size()); }
  bool replicated() const override { return true; }

  bool precomputes() const override { return true; }

  void begin() override {
    references_.clear();
    log_ratio_ = at::zeros({}, at::TensorOptions(context_.device).dtype(at::kDouble));
    num_answers_ = num_desirable_ = 0;
  }

  /// Computes the reference of the answers, and this row's part of KL over all mismatched answers
  /// of the step.
  void precompute(const Row& row) override {
    const c10::NoGradGuard no_grad;
    references_.push_back(context_.reference->document_logprobs(row, over(row)));
    const Row mismatched = make_row(row, Documents::kSecond, *row.attention, context_.device);
    const at::Tensor policy_B = document_logprobs(context_.model, mismatched.local,
                                                  mismatched.num_documents(), over(mismatched));
    const at::Tensor reference_B =
        context_.reference->document_logprobs(mismatched, over(mismatched));
    // One of the ranks that share the row counts it: end_precompute() sums over the ranks at one
    // place of their sequence groups.
    if (row.sharers().rank() != context_.mesh.sequence.rank()) return;
    log_ratio_.add_((policy_B - reference_B).sum());
    num_answers_ += std::ssize(row.examples);
    num_desirable_ +=
        std::count_if(row.examples.begin(), row.examples.end(),
                      [](const ExamplePointer& example) { return example->desirable; });
  }

  void end_precompute() override {
    const double own[] = {0.0, static_cast<double>(num_answers_),
                          static_cast<double>(num_desirable_)};
    const at::Tensor on_device =
        sent_to(at::tensor(at::ArrayRef<double>(own), at::kDouble), context_.device);
    on_device.select(0, 0).copy_(log_ratio_);
    context_.mesh.data.sum_(on_device);
    batch_ = kto_batch(on_device);
  }

  at::Tensor loss(const Row& row, size_t row_number, double total_weight,
                  Averages& averages) override {
    const int64_t B = row.num_documents();
    const at::Tensor desirable_B = at::zeros({B}, at::kBool);
    for (int64_t i = 0; i < B; ++i) desirable_B[i].fill_(row.examples[i]->desirable);
    const KtoScores scores{document_logprobs(context_.model, row.local, B, over(row)),
                           references_[row_number],
                           sent_to(document_label_counts(row.whole, B), context_.device),
                           sent_to(desirable_B, context_.device)};
    const KtoTerms terms = kto_terms(scores, options_, batch_);
    log(row, scores, terms, averages);
    return terms.losses_B.sum() / total_weight;
  }

  /// Good and bad answers do not form pairs, so the margin is between their means.
  NamedMeans completed(NamedMeans means) const override {
    const auto find = [&](const char* name) {
      return std::find_if(means.begin(), means.end(),
                          [&](const auto& mean) { return mean.first == name; });
    };
    const auto chosen = find("rewards/chosen"), rejected = find("rewards/rejected");
    if (chosen == means.end() || rejected == means.end()) return means;
    means.insert(rejected + 1, {"rewards/margins", chosen->second - rejected->second});
    return means;
  }

  std::vector<std::string> averages() const override {
    return {"rewards/chosen", "rewards/rejected", "logps/chosen", "logps/rejected", "kl"};
  }

 private:
  static SumOver over(const Row& row) {
    return [&row](const at::Tensor& x) { return sum_over(x, row.sharers()); };
  }

  void log(const Row& row, const KtoScores& scores, const KtoTerms& terms,
           Averages& averages) const {
    for (const bool desirable : {true, false}) {
      std::vector<int64_t> places;
      for (size_t i = 0; i < row.examples.size(); ++i) {
        if (row.examples[i]->desirable == desirable) places.push_back(static_cast<int64_t>(i));
      }
      const at::Tensor which = sent_to(at::tensor(places, at::kLong), context_.device);
      const std::string suffix = desirable ? "/chosen" : "/rejected";
      averages.add({{"rewards" + suffix, terms.rewards_B.index_select(0, which).sum()},
                    {"logps" + suffix, scores.policy_B.detach().index_select(0, which).sum()}},
                   static_cast<double>(places.size()));
    }
    if (scores.desirable_B.size(0) > 0) averages.add({{"kl", batch_.kl}}, 1.0);
  }

  ObjectiveContext context_;
  KtoOptions options_;
  std::vector<at::Tensor> references_;  // per row of the step
  at::Tensor log_ratio_;                // fp64, summed over this group's mismatched answers
  int64_t num_answers_ = 0, num_desirable_ = 0;
  KtoBatch batch_;
};

constexpr std::string_view kWeights[] = {"kto_chosen_weight", "kto_rejected_weight"};
constexpr StageKeys kWeightKeys{.keys = kWeights};
constexpr const StageKeys* kKeys[] = {&kPreferenceKeys, &kWeightKeys, &kReferenceKeys,
                                      &kPrecomputedKeys};

std::string document_name(const Example& example, size_t i) {
  return i == 0 ? fmt::format("answer ({})", example.desirable ? "good" : "bad")
                : "another row's answer, for KL";
}

std::string summary(const PreferenceSettings& config) { return preference_summary("kto", config); }

bool compares(const PreferenceSettings&) { return true; }

std::unique_ptr<Objective> make(const ObjectiveContext& context) {
  return std::make_unique<KtoObjective>(context);
}

}  // namespace

extern const Stage kKto{
    .name = "kto",
    .title = "KTO",
    .help =
        "single answers, each desirable or not; KL is estimated over the whole step, so that the "
        "loss "
        "does not depend on micro-batches (LLaMA-Factory's does, by about 5 %)",
    .keys = kKeys,
    .rows = RowKind::kUnpairedPreference,
    .rollouts = RolloutUse::kNone,
    .packs = false,
    .trains_all_answers = false,
    .uses_lm_head = true,
    .has_value_head = false,
    .compares_distributions = false,
    .deals_rows = true,
    .drawn = kLossAlone,
    .problems = no_problems,
    .encode = encode_unpaired,
    .document_name = document_name,
    .summary = summary,
    .has_reference = compares,
    .make = make,
};

}  // namespace longspan
