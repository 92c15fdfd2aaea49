// The data of a run, read by one rank of each machine for all ranks of the machine.
#pragma once

#include <functional>
#include <string>

#include "longspan/comm/group.h"
#include "longspan/liveness/notices.h"
#include "longspan/report/events.h"
#include "longspan/train/run_data.h"

namespace longspan {

/// Calls `read` on the first rank of each machine, which writes the result into a temporary file in
/// `cache_dir` (empty: the system's folder for temporary files). All ranks of the machine,
/// including the first, then read examples from that file, and hold no examples in memory. Ranks
/// that share a /proc count as one machine. A rank that cannot open the file calls `read` itself,
/// and rank 0 warns. If any rank fails, all ranks throw. Collective. With one rank, throws the
/// exception of `read`.
RunData share_data(const Group& world, Notices& notices, const std::string& cache_dir,
                   Events& events, const std::function<RunData()>& read);

}  // namespace longspan
