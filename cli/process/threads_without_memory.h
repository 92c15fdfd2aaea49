// The end of a process whose own threads get no memory.
#pragma once

namespace longspan {

/// From now on, an exception that leaves a thread for want of memory ends the process with one line
/// on stderr and status 1. Others end it as before (std::terminate).
void end_threads_without_memory();

}  // namespace longspan
