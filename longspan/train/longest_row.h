// The longest row of a run, for the memory estimate.
#pragma once

#include <string>

#include "longspan/account/run_account.h"
#include "longspan/session/workers.h"
#include "longspan/text/local_time.h"
#include "longspan/train/file_rules.h"
#include "longspan/train/run_data.h"

namespace longspan {

struct OptimizationSettings;

struct LongestRow {
  RowLengths lengths;
  std::string text;  // how the length is known, a sentence for users; empty: from the data set
};

/// Returns the longest row of the data set; without a data set, of examples with cutoff_len tokens.
/// For rollouts: the longest row of the file if the file has all rollouts of the run, otherwise the
/// longest possible row. `data`: null if the caller gives the rows. The same on all ranks.
/// Collective.
LongestRow longest_row(const FileRuleSettings& config, const OptimizationSettings& optimization,
                       const RunPlan& plan, const RunData* data, const LocalTime& template_time,
                       Workers& workers);

}  // namespace longspan
