// A stage of training as a description: keys, checks, help, readers of data, reports and the run
// read it, and know no stage by name. No torch.
//
// Each stage is one constant in its file in stages/. Functions are references: a description that
// forgets one does not compile. What several stages have in common is in stages/stage_parts.h; a
// stage names what it has, and nothing is assumed of a stage that does not.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "longspan/data/row_kind.h"

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

/// Keys that say something to some stages only. Another stage refuses them together.
struct StageKeys {
  std::span<const std::string_view> keys;  // in the order of the table of keys
  std::string_view use = {};               // what they are for, where stages alone do not tell
};

/// A mean beside the loss that is drawn, and that trainer_log.jsonl has, too.
struct DrawnMean {
  std::string_view name;      // among Objective::averages()
  std::string_view log_name;  // in trainer_log.jsonl, as LLaMA-Factory has it
  std::string_view title;     // of its picture
  std::string_view y_label;
};

struct Stage {
  std::string_view name;   // the value of stage
  std::string_view title;  // in a list of what the program does: "reward models"
  std::string_view help;   // of the value, in the help of the key stage
  std::span<const StageKeys* const> keys;
  RowKind rows;                      // what it reads of a data set
  bool packs;                        // what the key packing is where it is left out
  bool trains_all_answers;           // of a conversation, unless mask_history says otherwise
  bool uses_lm_head;                 // else the head has no gradient, and is not trained
  bool has_value_head;               // is trained beside the model, and saved with it
  std::span<const DrawnMean> drawn;  // beside the loss

  /// What keys demand of each other at this stage, beside what they demand at all stages: a line
  /// for each that is wrong, as check_config has them.
  std::vector<std::string> (&problems)(const PreferenceSettings& preferences,
                                       const MethodSettings& method);
  /// Rows -> what is trained on. See encode_examples.
  EncodedExamples (&encode)(const Encoding& encoding, const std::vector<Conversation>& rows);
  /// What document i of an example of several is: "chosen".
  std::string (&document_name)(const Example& example, size_t i);
  /// The line "Stage" of what a run says at its start; empty: none.
  std::string (&summary)(const PreferenceSettings& config);
  /// Does this configuration compare with a reference model?
  bool (&has_reference)(const PreferenceSettings& config);
  /// What a step's loss is.
  std::unique_ptr<Objective> (&make)(const ObjectiveContext& context);
};

/// The register: all stages, in the order of the help. (stages/stages.cpp)
std::span<const Stage* const> all_stages();

/// Throws UserError, with all names, where there is none.
const Stage& stage_named(std::string_view name);
const Stage& stage_of(const MethodSettings& config);

/// What the key packing comes to.
bool packs(const DataSettings& config, const Stage& stage);

/// The group that the key is in; null: the key is for every stage.
const StageKeys* group_of_key(std::string_view key);
/// Does the key say anything to the stage?
bool is_for_stage(std::string_view key, const Stage& stage);

std::vector<std::string_view> sorted_names(std::vector<std::string_view> names);
/// The names of those stages for which `has(stage)` is true, by the alphabet.
template <typename Has>
std::vector<std::string_view> names_of_stages_that(const Has& has) {
  std::vector<std::string_view> names;
  for (const Stage* stage : all_stages()) {
    if (has(*stage)) names.push_back(stage->name);
  }
  return sorted_names(std::move(names));
}
std::vector<std::string_view> names_of_stages_with(RowKind rows);
/// "dpo, kto"; empty: the key is for every stage.
std::string stages_of_key(std::string_view key);

/// "a", "a and b", "a, b and c".
std::string enumerated(const std::vector<std::string_view>& names);

/// What is wrong where a stage that the group is not of has a value for one of its keys: "pref_beta
/// and pref_ftx are for the stages dpo and kto".
std::string refusal_of(const StageKeys& group);

}  // namespace longspan
