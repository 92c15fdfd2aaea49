// Tells errors for want of memory from others.
#pragma once

#include <exception>

namespace longspan {

/// Was the error thrown for want of memory? Each library says so in a way of its own.
bool is_out_of_memory(const std::exception& error);

}  // namespace longspan
