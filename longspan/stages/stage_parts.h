// What several stages have in common.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "longspan/stages/stage.h"

namespace longspan {

// Keys
extern const StageKeys kPackingKeys;       // rows filled with several documents
extern const StageKeys kPreferenceKeys;    // strength of a preference
extern const StageKeys kReferenceKeys;     // which reference model, and when it is asked
extern const StageKeys kSharedPromptKeys;  // two answers to one prompt

/// Among the averages: the share of pairs whose chosen answer has the higher reward.
inline constexpr const char* kRewardAccuracies = "rewards/accuracies";
// Stage::drawn
inline constexpr DrawnMean kDrawnAccuracies[] = {{.name = kRewardAccuracies,
                                                  .log_name = "accuracy",
                                                  .title = "Pairs whose chosen answer is preferred",
                                                  .y_label = "share"}};
inline constexpr std::span<const DrawnMean> kLossAlone = {};

// Stage::problems: keys demand nothing of each other at this stage alone.
std::vector<std::string> no_problems(const PreferenceSettings& preferences,
                                     const MethodSettings& method);

// Stage::document_name
std::string numbered_document(const Example& example, size_t i);
std::string chosen_or_rejected(const Example& example, size_t i);

// Stage::has_reference: nothing is compared with.
bool no_reference(const PreferenceSettings& config);

/// `name`, and how strong the preference is.
std::string preference_summary(std::string name, const PreferenceSettings& config);

// Stage::make: the mean over all labels of -log p.
std::unique_ptr<Objective> make_token_cross_entropy(const ObjectiveContext& context);

}  // namespace longspan
