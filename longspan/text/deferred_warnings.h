// Warnings of code that cannot print for one run: kernels, which all runs of a process share. No
// torch.
#pragma once

#include <string>
#include <vector>

namespace longspan {

/// Stores a warning until take_deferred_warnings() returns it. Thread-safe. Stores at most 100.
void defer_warning(std::string text);

/// Returns the deferred warnings, oldest first, each to one caller only.
std::vector<std::string> take_deferred_warnings();

}  // namespace longspan
