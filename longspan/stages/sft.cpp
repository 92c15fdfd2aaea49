// sft: conversations, trained on their answers.
#include "longspan/data/stage_encoders.h"
#include "longspan/settings/preference_settings.h"
#include "longspan/stages/objective.h"
#include "longspan/stages/stage_parts.h"

namespace longspan {
namespace {

constexpr std::string_view kLoss[] = {"use_dft_loss", "use_eaft_loss", "eaft_alpha"},
                           kAccuracy[] = {"compute_accuracy"};
constexpr StageKeys kLossKeys{.keys = kLoss}, kAccuracyKeys{.keys = kAccuracy};
constexpr DrawnMean kDrawn[] = {{.name = "eval_accuracy",
                                 .log_name = "eval_accuracy",
                                 .title = "Accuracy of tokens",
                                 .y_label = "share"}};
constexpr const StageKeys* kKeys[] = {&kTrainedKeys, &kPackingKeys, &kNeatKeys,
                                      &kLossKeys,    &kNoiseKeys,   &kAccuracyKeys};

/// The default stage with its default loss has no summary line.
std::string summary(const PreferenceSettings& config) {
  if (config.use_dft_loss) return "sft, losses of tokens times their probabilities (DFT)";
  if (config.use_eaft_loss) return "sft, losses of tokens times their entropies (EAFT)";
  return "";
}

std::vector<std::string> problems(const PreferenceSettings& config, const MethodSettings&) {
  if (config.use_dft_loss && config.use_eaft_loss) {
    return {"use_dft_loss and use_eaft_loss are both true; keep one"};
  }
  if (!config.use_eaft_loss && config.eaft_alpha != PreferenceSettings().eaft_alpha) {
    return {"eaft_alpha is for use_eaft_loss: true; remove it, or set that"};
  }
  return {};
}

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
    .compares_distributions = false,
    .deals_rows = true,
    .drawn = kDrawn,
    .problems = problems,
    .encode = encode_answers,
    .document_name = numbered_document,
    .summary = summary,
    .has_reference = no_reference,
    .make = make_token_cross_entropy,
};

}  // namespace longspan
