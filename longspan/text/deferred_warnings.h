// Warnings of code that has no user to tell them to: kernels, which are shared by all runs of a
// process. No torch.
#pragma once

#include <string>
#include <vector>

namespace longspan {

/// Holds a warning until somebody takes it. Thread-safe. Holds at most 100.
void defer_warning(std::string text);

/// Returns the deferred warnings, oldest first, each to one caller only.
std::vector<std::string> take_deferred_warnings();

}  // namespace longspan
