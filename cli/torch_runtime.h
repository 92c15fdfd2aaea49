// The torch that this process has loaded.
#pragma once

#include <string>

#include "cli/process/torch_environment.h"

namespace longspan {

/// Returns the version of the loaded torch ("2.15.0+cpu"); empty if version.py cannot be read.
std::string torch_version();

/// Throws UserError if torch has another version than the one that Longspan was compiled with,
/// since C++ symbols and layouts change between versions. (CPU and CUDA builds of a version are
/// compatible.)
void require_compiled_torch();

}  // namespace longspan
