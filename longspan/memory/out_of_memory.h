// Is there no memory left, or is it something else?
#pragma once

#include <exception>

namespace longspan {

/// Libraries say it in ways of their own.
bool is_out_of_memory(const std::exception& error);

}  // namespace longspan
