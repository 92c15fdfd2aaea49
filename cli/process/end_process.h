// The end of a process that does not wait for what hangs.
#pragma once

namespace longspan {

/// Ends the process with this status, without running destructors, which may wait for other
/// processes. It first finishes what must not be left half done (finish_before_the_end).
[[noreturn]] void end_process_at_once(int status);

}  // namespace longspan
