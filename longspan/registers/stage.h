// The description of a stage of training. Keys, checks, help, data readers, reports and the run
// read the description, and none of them names a stage. No torch.
//
// Each stage is one constant in its file in stages/. Its functions are references, so that an
// incomplete description does not compile. Parts that stages share are in stages/stage_parts.h;
// each stage names the parts that it uses, and there are no defaults.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "longspan/registers/row_kind.h"

namespace longspan {

class Objective;
struct DataSettings;
struct MethodSettings;
struct Conversation;
struct EncodedExamples;
struct Encoding;
struct Example;
struct ObjectiveContext;
struct PreferenceSettings;

/// Keys that only some stages use. Other stages refuse these keys together.
struct StageKeys {
  std::span<const std::string_view> keys;  // in the order of the table of keys
  std::string_view use = {};               // purpose, if the stages' names do not show it
};

/// The values of rollouts that a stage uses for training.
enum class RolloutUse {
  kNone,     // the stage does not train on rollouts
  kRewards,  // rewards or advantages
  kTeacher   // log-probabilities by a teacher
};

/// A mean, besides the loss, that is plotted and written to trainer_log.jsonl.
struct DrawnMean {
  /// A name in Objective::averages(). A mean of evaluations alone has the prefix "eval_".
  std::string_view name;
  std::string_view log_name;  // in trainer_log.jsonl, as in LLaMA-Factory
  std::string_view title;     // of its plot
  std::string_view y_label;
};

struct Stage {
  std::string_view name;   // the value of stage
  std::string_view title;  // in a list of features, e.g. "reward models"
  std::string_view help;   // of this value, in the help of the key stage
  std::span<const StageKeys* const> keys;
  RowKind rows;             // the rows that the stage reads from a data set
  RolloutUse rollouts;      // kNone: a data set's rows are trained
  bool packs;               // default of the key packing
  bool trains_all_answers;  // in a conversation, unless mask_history says otherwise
  bool uses_lm_head;        // otherwise the head gets no gradient, and is not trained
  bool has_value_head;      // trained and saved with the model
  /// The reference, if there is one, is a teacher: it computes a row within the row's loss, and the
  /// logits of both models exist together.
  bool compares_distributions;
  /// Any ranks may compute a row (balance_batches, sequence_parallel_size: auto): the objective
  /// takes the ranks of a row from the row, not from the mesh.
  bool deals_rows;
  std::span<const DrawnMean> drawn;  // besides the loss

  /// Returns a line for each violated requirement between keys at this stage, as check_config
  /// returns them.
  std::vector<std::string> (&problems)(const PreferenceSettings& preferences,
                                       const MethodSettings& method);
  /// Makes the training examples from rows. See encode_examples.
  EncodedExamples (&encode)(const Encoding& encoding, const std::vector<Conversation>& rows);
  /// Returns the name of document i of an example with several, e.g. "chosen".
  std::string (&document_name)(const Example& example, size_t i);
  /// Returns the line "Stage" of a run's summary; empty: none.
  std::string (&summary)(const PreferenceSettings& config);
  /// True if this configuration uses a reference model.
  bool (&has_reference)(const PreferenceSettings& config);
  /// Makes the objective, which computes a step's loss.
  std::unique_ptr<Objective> (&make)(const ObjectiveContext& context);
};

/// The register: all stages, in the order of the help (stages/stages.cpp).
std::span<const Stage* const> all_stages();

/// Throws UserError with all names if the name is unknown.
const Stage& stage_named(std::string_view name);
const Stage& stage_of(const MethodSettings& config);

/// Returns the effective value of the key packing.
bool packs(const DataSettings& config, const Stage& stage);

/// Returns the group that contains the key; null if the key is for every stage.
const StageKeys* group_of_key(std::string_view key);
/// True if the stage uses the key.
bool is_for_stage(std::string_view key, const Stage& stage);

std::vector<std::string_view> sorted_names(std::vector<std::string_view> names);
/// Returns the names of the stages for which `has(stage)` is true, sorted.
template <typename Has>
std::vector<std::string_view> names_of_stages_that(const Has& has) {
  std::vector<std::string_view> names;
  for (const Stage* stage : all_stages()) {
    if (has(*stage)) names.push_back(stage->name);
  }
  return sorted_names(std::move(names));
}
std::vector<std::string_view> names_of_stages_with(RowKind rows);
/// For example "dpo, kto"; empty if the key is for every stage.
std::string stages_of_key(std::string_view key);

/// Joins as "a", "a and b" or "a, b and c".
std::string enumerated(const std::vector<std::string_view>& names);

/// Returns the error for a key of the group at a stage without it: "pref_beta and pref_ftx are for
/// the stages dpo and kto".
std::string refusal_of(const StageKeys& group);

}  // namespace longspan
