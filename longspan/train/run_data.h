// The rows of a run: read, encoded, and the same on every rank.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "longspan/comm/group.h"
#include "longspan/data/example_set.h"
#include "longspan/models/model_config.h"
#include "longspan/report/console.h"
#include "longspan/text/moment.h"
#include "longspan/text/saved_chat.h"

namespace longspan {

struct Config;

struct RunData {
  std::unique_ptr<ExampleSet> train, eval;
  std::optional<SavedChat> chat;  // what the saved model says of chats, where a template is named
};

/// Reads and encodes the data sets. Says what one example looks like, what was cut or left out, and
/// what looks like a mistake. `moment`: of the run. Throws UserError.
RunData read_data(const Config& config, const ModelConfig& model, const Moment& moment,
                  Console& console);

/// A hash of all tokens, labels, columns, positions and verdicts, in order.
std::string fingerprint_of(const ExampleSet& examples);

/// Throws when ranks read different models: each looks at its machine's files for itself, which say
/// whether there is a head beside the embedding (load_folder_config). Collective.
void require_same_model(const Group& world, const ModelConfig& model);

/// Throws when ranks hold different data: every rank of a sequence group must hold the same rows.
/// Collective.
void require_same_data(const Group& world, const RunData& data);

}  // namespace longspan
