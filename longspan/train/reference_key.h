// The key that identifies precomputed reference log-probabilities.
#pragma once

#include <string>
#include <vector>

#include "longspan/data/example_set.h"

namespace longspan {

struct DataSettings;
struct MethodSettings;
struct ModelSettings;
struct OptimizationSettings;
struct PreferenceSettings;

/// The sections of the configuration that determine reference log-probabilities.
struct ReferenceSettings {
  const ModelSettings& model;
  const MethodSettings& method;
  const PreferenceSettings& preferences;
  const DataSettings& data;
  const OptimizationSettings& optimization;
};

/// Returns a hash of all inputs that determine these log-probabilities: the files of the reference
/// model and of its adapters, stage, precision (which depends on finetuning_type), rope_scaling,
/// and the examples' tokens, labels, columns and positions. Excludes settings that affect only
/// rounding: the number of processes, checkpointing, chunks, kernels.
std::string reference_key(const ReferenceSettings& config, const ExampleSet& examples);

}  // namespace longspan
