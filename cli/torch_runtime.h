// The torch that this process runs on.
#pragma once

#include <string>

namespace longspan {

/// The folder of the torch package whose libraries are loaded (".../site-packages/torch").
std::string torch_directory();

/// Its version ("2.15.0+cpu"); empty when version.py cannot be read.
std::string torch_version();

/// Throws UserError when torch is of another version than the one that Longspan was compiled
/// against: C++ symbols and layouts change between versions. (CPU and CUDA builds of one version
/// are alike.)
void require_compiled_torch();

}  // namespace longspan
