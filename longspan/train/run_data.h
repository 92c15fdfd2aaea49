// The rows of a run: read, encoded, and equal on every rank.
#pragma once

#include <cstdint>
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

struct DataSettings;
struct MethodSettings;
struct ModelSettings;

/// The sections of the configuration that describe the data sets and how they become rows.
struct RowSettings {
  const ModelSettings& model;
  const MethodSettings& method;
  const DataSettings& data;
  int64_t seed;
};

struct RunData {
  std::unique_ptr<ExampleSet> train, eval;  // train: empty without `dataset`
  /// fingerprint_of() the sets; `fingerprint` is empty without `dataset`.
  std::string fingerprint, eval_fingerprint;
  std::optional<SavedChat> chat;  // chat settings of the saved model, if a template is configured
};

/// Reads and encodes the data sets. Reports an example, cut and left-out rows, and likely mistakes.
/// Without data sets, reads no tokenizer, and the saved model keeps the chat settings of its
/// folder. `template_time`: the run's time. Throws UserError.
RunData read_data(const RowSettings& config, const ModelConfig& model,
                  const LocalTime& template_time, Events& events);

/// Returns a hash of all tokens, labels, columns, positions and desirabilities, in order.
std::string fingerprint_of(const ExampleSet& examples);

/// Throws if ranks read different models: each rank reads the files on its own machine, which also
/// determine whether the head is untied (load_folder_config). Collective.
void require_same_model(const Group& world, const ModelConfig& model);

/// Throws if ranks hold different data; all ranks of a sequence group must hold the same rows.
/// Collective.
void require_same_data(const Group& world, const RunData& data);

}  // namespace longspan
