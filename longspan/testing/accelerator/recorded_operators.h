// Which operators the device is given, for a test that looks whether CUDA has them all.
#pragma once

#include <string>

namespace longspan::testing::accelerator {

/// Whether the environment variable SIMULATED_OPERATORS names a file.
bool records_operators();

/// Adds an operator ("aten::add.out") to that file, if it has been in none of this process's lines
/// before. Processes and threads may share the file. Throws std::runtime_error: it cannot be
/// written.
void record_operator(const std::string& name);

}  // namespace longspan::testing::accelerator
