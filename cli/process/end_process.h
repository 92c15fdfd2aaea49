// The end of a process that does not wait for what hangs.
#pragma once

#include <string>

namespace longspan {

/// Ends the process with this status, without running destructors, which may wait for other
/// processes. It first finishes what must not be left half done (finish_before_the_end).
[[noreturn]] void end_process_at_once(int status);

/// Several threads may find at about the same time that the process must end: the first that comes
/// here goes on, says why and ends it. Any other stays here until then.
void claim_last_words();

/// For who has claimed the last words: says "error: " and the message on stderr, and ends the
/// process at once with status 1.
[[noreturn]] void end_process_with_error(const std::string& message);

}  // namespace longspan
