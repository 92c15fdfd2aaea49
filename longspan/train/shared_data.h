// The data of a run, read by one rank of each machine for all ranks of the machine.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "longspan/comm/group.h"
#include "longspan/liveness/notices.h"
#include "longspan/report/events.h"
#include "longspan/train/early_rows.h"
#include "longspan/train/row_cache.h"
#include "longspan/train/run_data.h"

namespace longspan {

/// For rows that are encoded during the steps. Throw UserError.
struct EarlyStart {
  /// Whether `read` gives rows, unless they are too few. Says nothing.
  std::function<bool()> applies;
  /// Reads and counts the rows; null: read_data() encodes first.
  std::function<std::unique_ptr<EarlyData>()> read;
};

/// Calls `read` on the first rank of each machine, which writes the result into a temporary file in
/// `cache_dir` (empty: the system's folder for temporary files). All ranks of the machine,
/// including the first, then read examples from that file, and hold no examples in memory. Ranks
/// that share a /proc count as one machine. A rank that cannot open the file calls `read` itself,
/// and rank 0 warns. If any rank fails, all ranks throw. Collective. With one rank, throws the
/// exception of `read`.
///
/// `make_cache`, called on the first rank, returns the place where the run's rows are kept, or
/// null. Then the first rank takes the rows from there, and tells the lines again that `read` told;
/// or it calls `read` and keeps the result, if rows have tokens only. Kept rows must follow
/// `rules`.
///
/// `early_start`, where given and no rows are kept, is called before `read`, and may replace it.
/// The result then has RunData::early on all ranks, and keeps the rows when all are encoded, unless
/// another process encodes them into the same place.
RunData share_data(const Group& world, Notices& notices, const std::string& cache_dir,
                   Events& events, const ReadData& read, const ExampleRules& rules = {},
                   const std::function<std::unique_ptr<RowCache>()>& make_cache = nullptr,
                   const EarlyStart& early_start = {});

}  // namespace longspan
