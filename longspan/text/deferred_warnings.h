// Warnings of kernels. All runs of a process share the kernels, so a kernel cannot print for one
// run. No torch.
#pragma once

#include <string>
#include <vector>

namespace longspan {

/// Stores a warning until take_deferred_warnings() returns it. Thread-safe. Stores at most 100.
void defer_warning(std::string text);

/// Returns the deferred warnings, oldest first. Each warning is returned once.
std::vector<std::string> take_deferred_warnings();

}  // namespace longspan
