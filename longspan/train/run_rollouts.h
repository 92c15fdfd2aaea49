// The source of rollouts of a run, by its configuration.
#pragma once

#include <memory>

#include "longspan/data/example_source.h"
#include "longspan/liveness/run_control.h"
#include "longspan/session/session.h"
#include "longspan/session/workers.h"
#include "longspan/train/run_data.h"

namespace longspan {

struct Config;

struct RolloutParts {
  Session& session;
  Workers& workers;
  const RunData& data;  // questions, for rollouts of the model itself
  const LocalTime& template_time;
  const RunControl& control;
  Events& events;
};

/// `config` and the parts must outlive the source. Throws UserError. Collective.
std::unique_ptr<ExampleSource> rollout_source(const Config& config, const RolloutParts& parts);

}  // namespace longspan
