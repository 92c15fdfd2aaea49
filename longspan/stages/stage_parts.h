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
extern const StageKeys kNoiseKeys;         // noise on the embedding
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
// Parts of Stage::drawn, for updates on rollouts
inline constexpr DrawnMean kDrawnEntropy{
    .name = "entropy", .log_name = "entropy", .title = "Entropy of tokens", .y_label = "nats"};
inline constexpr DrawnMean kDrawnKl{
    .name = "kl", .log_name = "kl", .title = "KL to the reference model", .y_label = "nats"};
inline constexpr DrawnMean kDrawnLength{.name = "completions/mean_length",
                                        .log_name = "mean_length",
                                        .title = "Length of rollouts",
                                        .y_label = "trained tokens"};
inline constexpr DrawnMean kDrawnTruncated{.name = "completions/clipped_ratio",
                                           .log_name = "truncated",
                                           .title = "Truncated rollouts",
                                           .y_label = "share"};
inline constexpr DrawnMean kDrawnLow{.name = "clip_ratio/low_mean",
                                     .log_name = "clipped_low",
                                     .title = "Tokens clipped below",
                                     .y_label = "share"};
inline constexpr DrawnMean kDrawnHigh{.name = "clip_ratio/high_mean",
                                      .log_name = "clipped_high",
                                      .title = "Tokens clipped above",
                                      .y_label = "share"};
inline constexpr DrawnMean kDrawnMismatch{.name = "sampling/logp_difference",
                                          .log_name = "sampler_mismatch",
                                          .title = "Difference of sampler and trainer",
                                          .y_label = "nats"};

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
