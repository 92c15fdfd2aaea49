// Training while rows are encoded: whether a run does so, and the source of its examples.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "longspan/data/example_source.h"
#include "longspan/saving/training_state.h"
#include "longspan/session/run_plan.h"
#include "longspan/settings/optimization_settings.h"
#include "longspan/settings/preference_settings.h"
#include "longspan/train/early_rows.h"
#include "longspan/train/shared_data.h"

namespace longspan {

/// Properties of a run that decide whether it trains while its rows are encoded.
struct EarlyFacts {
  const RowSettings& rows;
  const PreferenceSettings& preferences;
  const RunPlan& plan;
  const LocalTime& template_time;
  const TrainingState* resumed;                                 // the checkpoint; null: a new run
  bool gives_rows;                                              // the caller makes the examples
  std::vector<std::pair<std::string, std::string>> row_makers;  // keys that make training rows
};
/// Returns why the run encodes all rows before its first step, as a clause; "": it need not.
std::string why_encoded_first(const EarlyFacts& facts);
/// Returns why `folder` cannot hold the texts and the rows of data files, as a clause; "": it can.
std::string why_no_room(const std::string& folder, int64_t num_data_bytes);

/// The early start of rows that are worth it: those of tokenized_path, of data files with at least
/// kFewestCachedBytes, and of a checkpoint that was saved while they were encoded. Says why other
/// rows are encoded first. `facts` must outlive the result.
EarlyStart early_start(const EarlyFacts& facts, const Events& events);

/// For a run that goes on from a checkpoint that was saved while its rows were encoded: returns the
/// fingerprint that is compared with the checkpoint's. Reads the texts, unless `data` has their
/// fingerprint. Otherwise empty. Throws UserError if the rows of the run cannot be compared.
std::string texts_to_compare(const EarlyFacts& facts, const RunData& data, const Events& events);

/// The epochs of the training set for this rank of `groups`, the data-parallel groups. Waits for
/// rows that are encoded during the steps. `data` must outlive the result.
std::unique_ptr<ExampleSource> epochs_of(const OptimizationSettings& config, bool shuffles,
                                         const Group& groups, const RunData& data);

}  // namespace longspan
