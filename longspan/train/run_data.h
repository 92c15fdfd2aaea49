// The rows of a run: read, encoded, and equal on every rank.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "longspan/comm/group.h"
#include "longspan/data/example_set.h"
#include "longspan/models/model_config.h"
#include "longspan/report/events.h"
#include "longspan/text/local_time.h"
#include "longspan/text/saved_chat.h"

namespace longspan {

struct Config;

struct RunData {
  std::unique_ptr<ExampleSet> train, eval;
  std::string fingerprint, eval_fingerprint;  // fingerprint_of() the sets
  std::optional<SavedChat> chat;  // chat settings of the saved model, if a template is configured
};

/// Reads and encodes the data sets. Prints an example, cut and left-out rows, and likely mistakes.
/// `template_time`: of the run. Throws UserError.
RunData read_data(const Config& config, const ModelConfig& model, const LocalTime& template_time,
                  Events& events);

/// Returns a hash of all tokens, labels, columns, positions and desirabilities, in order.
std::string fingerprint_of(const ExampleSet& examples);

/// Throws if ranks read different models: each reads its own machine's files, which also determine
/// whether there is an untied head (load_folder_config). Collective.
void require_same_model(const Group& world, const ModelConfig& model);

/// Throws if ranks hold different data; all ranks of a sequence group must hold the same rows.
/// Collective.
void require_same_data(const Group& world, const RunData& data);

}  // namespace longspan
