// The source of a data set's rows, dealt to ranks by their work.
#pragma once

#include <memory>

#include "longspan/data/example_source.h"
#include "longspan/session/session.h"

namespace longspan {

struct Config;

/// `config`: deals_rows(). The set must not be empty, and must outlive the result. The rows of a
/// step are those of a run with as many data-parallel groups: with sequence_parallel_size: auto,
/// one for each rank.
std::unique_ptr<ExampleSource> dealt_source(const Config& config, const RunPlan& plan,
                                            const ExampleSet& examples, const Session& session);

}  // namespace longspan
