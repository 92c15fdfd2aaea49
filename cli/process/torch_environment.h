// The Python environment whose torch this process has loaded.
#pragma once

#include <filesystem>
#include <string>

namespace longspan {

/// Returns the folder of the loaded torch package (".../site-packages/torch").
std::string torch_directory();

/// Returns the folder of the environment's programs (torchrun, python3).
std::filesystem::path environment_bin();

/// Returns the environment's interpreter; "python3", which is looked for on PATH, if the
/// environment has none at the usual place.
std::string environment_python();

}  // namespace longspan
