// What is in the files of a run, read by all ranks in shares.
#pragma once

#include "longspan/comm/group.h"
#include "longspan/comm/notices.h"
#include "longspan/report/console.h"
#include "longspan/saving/run_contents.h"

namespace longspan {

struct Config;

/// Returns files_of_run with stamps and digests on rank 0, and nothing on the others. Does not read
/// a file whose path and stamp are in `known`. Rank 0 reads what another rank does not find at rank
/// 0's path, or finds with another size or time. A file that rank 0 cannot read has no digest, and
/// a line on the console says so. Collective. Throws as all_or_none.
RunContents read_contents(const Config& config, const Group& world, Notices& notices,
                          const RunContents& known, Console& console);

}  // namespace longspan
