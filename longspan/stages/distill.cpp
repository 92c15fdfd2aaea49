// distill, distill_sft: the policy learns a teacher's distribution over tokens, on rollouts or on a
// data set's answers.
#include <fmt/format.h>

#include <algorithm>

#include "longspan/data/stage_encoders.h"
#include "longspan/settings/method_settings.h"
#include "longspan/settings/preference_settings.h"
#include "longspan/stages/objective.h"
#include "longspan/stages/policy_objective.h"
#include "longspan/stages/stage_parts.h"

namespace longspan {
namespace {

constexpr std::string_view kDivergence[] = {"distill_beta", "distill_temperature", "distill_top_k"};
constexpr StageKeys kDivergenceKeys{.keys = kDivergence};
constexpr const StageKeys* kKeysOfRollouts[] = {&kRolloutKeys, &kUpdateKeys, &kDivergenceKeys,
                                                &kReferenceKeys};
constexpr const StageKeys* kKeysOfAnswers[] = {&kTrainedKeys, &kPackingKeys, &kNeatKeys,
                                               &kDivergenceKeys, &kReferenceKeys};

/// The mean over all labels of the divergence of policy and teacher, the reference.
class Distillation : public Objective {
 public:
  Distillation(const ObjectiveContext& context, Documents documents)
      : context_(context), documents_(documents) {
    const PolicySettings& settings = context.preferences.policy;
    options_ = {.beta = settings.distill_beta,
                .temperature = settings.distill_temperature,
                .top_k = settings.distill_top_k};
  }

  Documents documents() const override { return documents_; }
  double weight(const Row& row) const override {
    return static_cast<double>(count_labels(row.whole));
  }
  bool replicated() const override { return false; }
  std::vector<std::string> averages() const override {
    if (documents_ != Documents::kRollouts) return {};
    return {"completions/mean_length", "completions/clipped_ratio"};
  }
  at::Tensor loss(const Row& row, size_t, double total_weight, Averages& averages) override {
    if (documents_ == Documents::kRollouts && !row.examples.empty()) add_lengths(row, averages);
    return context_.model
        .divergence_from(context_.reference->teacher_head(row), row.local, options_)
        .sum()
        .div(std::max(1.0, total_weight));
  }

 private:
  static void add_lengths(const Row& row, Averages& averages) {
    const auto D = static_cast<double>(row.num_documents());
    averages.add("completions/mean_length", static_cast<double>(count_labels(row.whole)), D);
    double num_truncated = 0;
    for (const ExamplePointer& example : row.examples) {
      num_truncated += static_cast<double>(example->num_truncated);
    }
    averages.add("completions/clipped_ratio", num_truncated, D);
  }

  ObjectiveContext context_;
  Documents documents_;
  DivergenceOptions options_;
};

bool has_teacher(const PreferenceSettings& config) { return !config.ref_model.empty(); }

std::vector<std::string> problems_of_rollouts(const PreferenceSettings& config,
                                              const MethodSettings& method) {
  std::vector<std::string> problems;
  const auto demand = [&](bool holds, std::string_view problem) {
    if (!holds) problems.emplace_back(problem);
  };
  const PolicySettings& policy = config.policy;
  if (has_teacher(config)) return problems;
  demand(policy.epsilon < 1, "epsilon: the lower clip is 1 - epsilon; give less than 1");
  demand(!policy.importance_sampling_clip_min ||
             *policy.importance_sampling_clip_min <= policy.importance_sampling_clip_max,
         "importance_sampling_clip_min is above importance_sampling_clip_max; lower it");
  demand(policy.rollout == "file",
         "ref_model is missing: give the teacher. Only rollouts of a file can have a teacher's "
         "log-probabilities (teacher_logprobs) instead");
  demand(method.lora_dropout == 0 || policy.num_iterations == 1,
         "num_iterations above 1 computes each rollout twice, which lora_dropout would make "
         "different; set lora_dropout: 0");
  return problems;
}

std::vector<std::string> problems_of_answers(const PreferenceSettings& config,
                                             const MethodSettings&) {
  if (has_teacher(config)) return {};
  return {"ref_model is missing: give the teacher"};
}

std::string document_name(const Example& example, size_t i) {
  return fmt::format("rollout {} of {}", i + 1, example.documents.size());
}

std::string divergence_summary(const PreferenceSettings& config) {
  const PolicySettings& policy = config.policy;
  std::string text =
      fmt::format("teacher {}, distill_beta {}", config.ref_model, policy.distill_beta);
  if (policy.distill_temperature != 1) {
    text += fmt::format(", distill_temperature {}", policy.distill_temperature);
  }
  if (policy.distill_top_k) text += fmt::format(", distill_top_k {}", *policy.distill_top_k);
  return text;
}

std::string summary_of_rollouts(const PreferenceSettings& config) {
  return fmt::format("distill, {} rollouts of a group, {}", config.policy.num_generations,
                     has_teacher(config) ? divergence_summary(config)
                                         : "a teacher's log-probabilities of the rollouts");
}

std::string summary_of_answers(const PreferenceSettings& config) {
  return "distill_sft, " + divergence_summary(config);
}

std::unique_ptr<Objective> make_on_rollouts(const ObjectiveContext& context) {
  if (!has_teacher(context.preferences)) return make_sampled_distillation(context);
  return std::make_unique<Distillation>(context, Documents::kRollouts);
}

std::unique_ptr<Objective> make_on_answers(const ObjectiveContext& context) {
  return std::make_unique<Distillation>(context, Documents::kAll);
}

constexpr DrawnMean kDrawn[] = {kDrawnEntropy, kDrawnKl,   kDrawnLength,  kDrawnTruncated,
                                kDrawnLow,     kDrawnHigh, kDrawnMismatch};

}  // namespace

extern const Stage kDistill{
    .name = "distill",
    .title = "distillation on rollouts",
    .help = "a teacher's distribution over tokens, on rollouts of the policy",
    .keys = kKeysOfRollouts,
    .rows = RowKind::kQuestion,
    .rollouts = RolloutUse::kTeacher,
    .packs = false,
    .trains_all_answers = false,
    .uses_lm_head = true,
    .has_value_head = false,
    .compares_distributions = true,
    .deals_rows = false,
    .drawn = kDrawn,
    .problems = problems_of_rollouts,
    .encode = encode_prompts,
    .document_name = document_name,
    .summary = summary_of_rollouts,
    .has_reference = has_teacher,
    .make = make_on_rollouts,
};

extern const Stage kDistillSft{
    .name = "distill_sft",
    .title = "distillation on answers",
    .help = "a teacher's distribution over tokens, on the answers of a data set",
    .keys = kKeysOfAnswers,
    .rows = RowKind::kAnswer,
    .rollouts = RolloutUse::kNone,
    .packs = false,
    .trains_all_answers = true,
    .uses_lm_head = true,
    .has_value_head = false,
    .compares_distributions = true,
    .deals_rows = true,
    .drawn = kLossAlone,
    .problems = problems_of_answers,
    .encode = encode_answers,
    .document_name = numbered_document,
    .summary = summary_of_answers,
    .has_reference = has_teacher,
    .make = make_on_answers,
};

}  // namespace longspan
