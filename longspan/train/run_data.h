// The rows of a run: read, encoded, and the same on every rank.
#pragma once

#include <string>

#include "longspan/comm/group.h"
#include "longspan/config/config.h"
#include "longspan/data/example_encoder.h"
#include "longspan/models/model_config.h"
#include "longspan/train/console.h"

namespace longspan {

struct RunData {
  EncodedExamples train, eval;
};

/// Reads and encodes the data sets; says what one example looks like. Throws UserError.
RunData read_data(const Config& config, const ModelConfig& model, Console& console);

/// A hash of all tokens, labels and verdicts, in order.
std::string fingerprint_of(const std::vector<Example>& examples);

/// Throws when ranks hold different data: every rank of a sequence group must hold the same rows.
/// Collective.
void require_same_data(const Group& world, const RunData& data);

}  // namespace longspan
