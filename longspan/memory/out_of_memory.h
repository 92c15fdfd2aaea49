// Tells errors for want of memory from others, and ends a process that has no memory left.
#pragma once

#include <exception>

namespace longspan {

/// Was the error thrown for want of memory? Each library says so in a way of its own.
bool is_out_of_memory(const std::exception& error);

/// From now on, an exception that leaves a thread for want of memory ends the process with one line
/// on stderr and status 1. Others end it as before (std::terminate).
void end_threads_without_memory();

}  // namespace longspan
