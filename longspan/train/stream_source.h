// Training rows from streamed data sets.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "longspan/data/example_source.h"
#include "longspan/session/session.h"
#include "longspan/session/workers.h"
#include "longspan/train/encoded_data.h"

namespace longspan {

struct OptimizationSettings;

/// Returns the fingerprint of streamed rows, by the keys that make them (stream_settings). The
/// contents of the files are compared apart (require_same_run).
std::string fingerprint_of_stream(const std::vector<std::pair<std::string, std::string>>& keys);

/// Returns the source of the rows of `dataset`. Rank 0 reads and encodes the rows, and sends the
/// examples of each step to the other ranks. The order of the examples does not depend on the
/// ranks. All arguments must outlive the source. Throws UserError. Collective.
std::unique_ptr<ExampleSource> stream_source(const RowSettings& config,
                                             const OptimizationSettings& optimization,
                                             const LocalTime& template_time, const Session& session,
                                             Workers& workers);

}  // namespace longspan
