// The source of rollouts of a run, by its configuration.
#pragma once

#include <memory>

#include "longspan/data/example_source.h"
#include "longspan/liveness/run_control.h"
#include "longspan/session/session.h"
#include "longspan/session/workers.h"
#include "longspan/train/run_data.h"
#include "longspan/train/run_start.h"

namespace longspan {

struct DataSettings;
struct MethodSettings;
struct ModelSettings;
struct OptimizationSettings;
struct OutputSettings;
struct PreferenceSettings;

/// The sections of the configuration that describe rollouts.
struct RolloutSettings {
  const ModelSettings& model;
  const MethodSettings& method;
  const PreferenceSettings& preferences;
  const DataSettings& data;
  const OutputSettings& output;
  const OptimizationSettings& optimization;
};

struct RolloutParts {
  Session& session;
  Workers& workers;
  const RunData& data;  // questions, for rollouts of the model itself
  const LocalTime& template_time;
  const RunControl& control;
  Events& events;
  const RunStart& start;
};

/// The settings and the parts must outlive the source. Throws UserError. Collective.
std::unique_ptr<ExampleSource> rollout_source(const RolloutSettings& config,
                                              const RolloutParts& parts);

}  // namespace longspan
