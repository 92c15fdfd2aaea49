// What is in the files of a run, read by all ranks in shares.
#pragma once

#include "longspan/comm/group.h"
#include "longspan/comm/notices.h"
#include "longspan/config/config.h"
#include "longspan/train/console.h"
#include "longspan/train/run_contents.h"

namespace longspan {

/// files_of_run with stamps and digests, on rank 0; nothing on the others. A file whose path and
/// stamp are in `known` is not read. What another rank does not find at rank 0's path, or finds
/// with another size or time, rank 0 reads; what rank 0 cannot read has no digest, and a line says
/// so. Collective. Throws as all_or_none.
RunContents read_contents(const Config& config, const Group& world, Notices& notices,
                          const RunContents& known, Console& console);

}  // namespace longspan
