// Ends a process without waiting for hung threads.
#pragma once

#include <string>

namespace longspan {

/// Ends the process with this status, without running destructors, which may wait for other
/// processes. First completes work that must not be left half done (finish_before_the_end).
[[noreturn]] void end_process_at_once(int status);

/// Called by threads that are about to print the reason of the process's end and to end the
/// process: the first caller returns; all other callers block here until the end.
void claim_last_words();

/// Called after claim_last_words(): prints "error: " and the message to stderr, and ends the
/// process at once with status 1.
[[noreturn]] void end_process_with_error(const std::string& message);

}  // namespace longspan
