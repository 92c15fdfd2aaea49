// sft: conversations, trained on their answers.
#include "longspan/data/stage_encoders.h"
#include "longspan/settings/preference_settings.h"
#include "longspan/stages/objective.h"
#include "longspan/stages/stage_parts.h"

namespace longspan {
namespace {

constexpr std::string_view kLoss[] = {"use_dft_loss"}, kAccuracy[] = {"compute_accuracy"};
constexpr StageKeys kLossKeys{.keys = kLoss}, kAccuracyKeys{.keys = kAccuracy};
constexpr DrawnMean kDrawn[] = {{.name = "eval_accuracy",
                                 .log_name = "eval_accuracy",
                                 .title = "Accuracy of tokens",
                                 .y_label = "share"}};
constexpr const StageKeys* kKeys[] = {&kTrainedKeys, &kPackingKeys, &kNeatKeys,
                                       &kLossKeys,    &kNoiseKeys,   &kAccuracyKeys};

/// The default stage with its default loss has no summary line.
std::string summary(const PreferenceSettings& config) {
  return config.use_dft_loss ? "sft, losses of tokens times their probabilities (DFT)" : "";
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
    .drawn = kDrawn,
    .problems = no_problems,
    .encode = encode_answers,
    .document_name = numbered_document,
    .summary = summary,
    .has_reference = no_reference,
    .make = make_token_cross_entropy,
};

}  // namespace longspan
