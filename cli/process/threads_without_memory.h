// Ends a process whose own threads run out of memory.
#pragma once

namespace longspan {

/// From now on, an out-of-memory exception that escapes from a thread ends the process with one
/// line on stderr and status 1. Other exceptions end the process as before (std::terminate).
void end_threads_without_memory();

}  // namespace longspan
