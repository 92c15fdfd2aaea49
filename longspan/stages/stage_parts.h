// Parts that several stages share.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "longspan/registers/stage.h"

namespace longspan {

// Keys
extern const StageKeys kTrainedKeys;       // which parts of a conversation are trained
extern const StageKeys kPackingKeys;       // rows that hold several documents
extern const StageKeys kNeatKeys;          // whether these documents see each other
extern const StageKeys kPreferenceKeys;    // strength of a preference
extern const StageKeys kReferenceKeys;     // which reference model
extern const StageKeys kPrecomputedKeys;   // when the reference model is computed
extern const StageKeys kSharedPromptKeys;  // two answers to one prompt
extern const StageKeys kRolloutKeys;       // the source of rollouts
extern const StageKeys kUpdateKeys;        // updates on rollouts

/// Name of the mean: the share of pairs whose chosen answer has the higher reward.
inline constexpr const char* kRewardAccuracies = "rewards/accuracies";
// Stage::drawn
inline constexpr DrawnMean kDrawnAccuracies[] = {{.name = kRewardAccuracies,
                                                  .log_name = "accuracy",
                                                  .title = "Pairs whose chosen answer is preferred",
                                                  .y_label = "share"}};
inline constexpr std::span<const DrawnMean> kLossAlone = {};

// Stage::problems: no requirements between keys.
std::vector<std::string> no_problems(const PreferenceSettings& preferences,
                                     const MethodSettings& method);

// Stage::document_name
std::string numbered_document(const Example& example, size_t i);
std::string chosen_or_rejected(const Example& example, size_t i);

// Stage::has_reference: false.
bool no_reference(const PreferenceSettings& config);

/// Returns `name` and the strength of the preference.
std::string preference_summary(std::string name, const PreferenceSettings& config);

// Stage::make: the mean of -log p over all labels.
std::unique_ptr<Objective> make_token_cross_entropy(const ObjectiveContext& context);

}  // namespace longspan
