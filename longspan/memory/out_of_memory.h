// Tells out-of-memory errors from other errors.
#pragma once

#include <exception>

namespace longspan {

/// True if the error means that memory ran out. Knows the exceptions and messages of each library.
bool is_out_of_memory(const std::exception& error);

}  // namespace longspan
