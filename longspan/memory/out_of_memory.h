// Is there no memory left, or is it something else? What ends a process that has none.
#pragma once

#include <exception>

namespace longspan {

/// Libraries say it in ways of their own.
bool is_out_of_memory(const std::exception& error);

/// From now on an exception that leaves a thread because no memory is left, not even for the thread
/// that would tell of it, ends the process with one line on stderr and status 1. Others end it as
/// before (std::terminate).
void end_threads_without_memory();

}  // namespace longspan
