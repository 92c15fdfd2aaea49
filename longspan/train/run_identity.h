// Identity of a run: the keys and file contents that a start must share with the checkpoint that it
// resumes from.
#pragma once

#include "longspan/comm/mesh.h"
#include "longspan/models/model_config.h"
#include "longspan/saving/training_state.h"
#include "longspan/session/trained_model.h"
#include "longspan/train/run_data.h"

namespace longspan {

struct MethodSettings;
struct OptimizationSettings;
struct PreferenceSettings;

/// Inputs of identity_of() from the configuration.
struct IdentitySettings {
  const MethodSettings& method;
  const PreferenceSettings& preferences;
  const OptimizationSettings& optimization;
  Settings keys;  // training_settings()
};

/// Returns the identity of this start without the contents of files, which are read later. `model`:
/// the config of the trained model, with rope_scaling.
RunIdentity identity_of(const IdentitySettings& config, const Mesh& mesh, const ModelConfig& model,
                        const TrainedModel& trained, const RunData& data,
                        const LocalTime& template_time);

}  // namespace longspan
