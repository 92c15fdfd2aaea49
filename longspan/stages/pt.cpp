// pt: plain text.
#include "longspan/data/stage_encoders.h"
#include "longspan/stages/objective.h"
#include "longspan/stages/stage_parts.h"

namespace longspan {
namespace {

constexpr const StageKeys* kKeys[] = {&kPackingKeys, &kNoiseKeys};

std::string summary(const PreferenceSettings&) { return "pt: plain text"; }

}  // namespace

extern const Stage kPretraining{
    .name = "pt",
    .title = "pre-training",
    .help = "plain text",
    .keys = kKeys,
    .rows = RowKind::kText,
    .rollouts = RolloutUse::kNone,
    .packs = true,
    .trains_all_answers = false,
    .uses_lm_head = true,
    .has_value_head = false,
    .compares_distributions = false,
    .deals_rows = true,
    .drawn = kLossAlone,
    .problems = no_problems,
    .encode = encode_texts,
    .document_name = numbered_document,
    .summary = summary,
    .has_reference = no_reference,
    .make = make_token_cross_entropy,
};

}  // namespace longspan
