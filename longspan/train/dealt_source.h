// The source of a data set's rows, dealt to ranks by their work.
#pragma once

#include <memory>

#include "longspan/data/example_source.h"
#include "longspan/session/session.h"
#include "longspan/settings/data_settings.h"
#include "longspan/settings/method_settings.h"
#include "longspan/settings/model_settings.h"
#include "longspan/settings/optimization_settings.h"

namespace longspan {

/// The sections of a configuration that a dealing reads.
struct DealtSettings {
  const ModelSettings& model;
  const MethodSettings& method;
  const DataSettings& data;
  const OptimizationSettings& optimization;
};

/// `plan`: deals_rows. The set must not be empty, and must outlive the result. The rows of a step
/// are those of a run with as many data-parallel groups: with sequence_parallel_size: auto, one for
/// each rank. Throws UserError on all ranks if their plans differ. Collective.
std::unique_ptr<ExampleSource> dealt_source(const DealtSettings& config, const RunPlan& plan,
                                            const ExampleSet& examples, const Session& session);

}  // namespace longspan
