// sft: conversations, trained on their answers.
#include <fmt/format.h>

#include "longspan/data/stage_encoders.h"
#include "longspan/settings/preference_settings.h"
#include "longspan/stages/objective.h"
#include "longspan/stages/stage_parts.h"

namespace longspan {
namespace {

constexpr std::string_view kLoss[] = {"use_dft_loss", "use_asft_loss", "asft_alpha",
                                      "use_eaft_loss", "eaft_alpha"},
                           kAccuracy[] = {"compute_accuracy"},
                           kAnswers[] = {"predict_with_generate",
                                         "do_predict",
                                         "do_sample",
                                         "temperature",
                                         "top_p",
                                         "top_k",
                                         "max_new_tokens",
                                         "repetition_penalty",
                                         "skip_special_tokens"};
constexpr StageKeys kLossKeys{.keys = kLoss}, kAccuracyKeys{.keys = kAccuracy},
    kAnswerKeys{.keys = kAnswers};
constexpr DrawnMean kDrawn[] = {{.name = "eval_accuracy",
                                 .log_name = "eval_accuracy",
                                 .title = "Accuracy of tokens",
                                 .y_label = "share"}};
constexpr const StageKeys* kKeys[] = {&kTrainedKeys, &kPackingKeys,  &kNeatKeys,      &kLossKeys,
                                      &kNoiseKeys,   &kAccuracyKeys, &kReferenceKeys, &kAnswerKeys};

/// The default stage with its default loss has no summary line.
std::string summary(const PreferenceSettings& config) {
  if (config.use_dft_loss) return "sft, losses of tokens times their probabilities (DFT)";
  if (config.use_asft_loss) {
    return fmt::format(
        "sft, losses of tokens times their probabilities, and {} KL to the reference (ASFT)",
        config.asft_alpha);
  }
  if (config.use_eaft_loss) return "sft, losses of tokens times their entropies (EAFT)";
  return "";
}

std::vector<std::string> problems(const PreferenceSettings& config, const MethodSettings&) {
  const PreferenceSettings defaults;
  std::vector<std::string> problems;
  const auto demand = [&](bool holds, const char* problem) {
    if (!holds) problems.emplace_back(problem);
  };
  demand(config.use_dft_loss + config.use_asft_loss + config.use_eaft_loss < 2,
         "use_dft_loss, use_asft_loss and use_eaft_loss are different losses; keep one");
  demand(config.use_eaft_loss || config.eaft_alpha == defaults.eaft_alpha,
         "eaft_alpha is for use_eaft_loss: true; remove it, or set that");
  demand(config.use_asft_loss || config.asft_alpha == defaults.asft_alpha,
         "asft_alpha is for use_asft_loss: true; remove it, or set that");
  demand(config.use_asft_loss || (config.ref_model.empty() && config.ref_model_adapters.empty()),
         "ref_model and ref_model_adapters are for use_asft_loss: true at stage: sft; remove them");
  return problems;
}

bool compares(const PreferenceSettings& config) { return config.use_asft_loss; }

}  // namespace

extern const Stage kSft{
    .name = "sft",
    .title = "supervised fine-tuning",
    .help = "supervised fine-tuning",
    .keys = kKeys,
    .rows = RowKind::kAnswer,
    .rollouts = RolloutUse::kNone,
    .packs = false,
    .trains_all_answers = true,
    .uses_lm_head = true,
    .has_value_head = false,
    .compares_distributions = true,
    .deals_rows = true,
    .drawn = kDrawn,
    .problems = problems,
    .encode = encode_answers,
    .document_name = numbered_document,
    .summary = summary,
    .has_reference = compares,
    .make = make_token_cross_entropy,
};

}  // namespace longspan
