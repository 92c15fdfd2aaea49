// Warnings of code that has no user to tell them to: kernels, which are shared by all runs of a
// process. No torch.
#pragma once

#include <string>
#include <vector>

namespace longspan {

/// Keeps a warning until somebody takes it. Thread-safe. Keeps at most 100.
void keep_warning(std::string text);

/// Returns the kept warnings, oldest first, each to one caller only.
std::vector<std::string> take_kept_warnings();

}  // namespace longspan
