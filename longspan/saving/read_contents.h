// Reads the contents of a run's files, divided over all ranks.
#pragma once

#include "longspan/comm/group.h"
#include "longspan/liveness/notices.h"
#include "longspan/report/console.h"
#include "longspan/report/events.h"
#include "longspan/saving/run_contents.h"

namespace longspan {

/// Returns, on rank 0, files_of_run with stamps and digests; an empty list on other ranks. Does not
/// read files whose path and stamp are in `known`. Rank 0 reads each file that another rank does
/// not find at rank 0's path, or finds with another size or time. A file that rank 0 cannot read
/// has no digest, and an event names it. Collective. Throws as all_or_none.
RunContents read_contents(const ContentSettings& settings, const Group& world, Notices& notices,
                          const RunContents& known, Events& events);

}  // namespace longspan
