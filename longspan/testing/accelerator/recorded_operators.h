// Records the operators that the device gets, for a test that CUDA has all these operators.
#pragma once

#include <string>

namespace longspan::testing::accelerator {

/// True if the environment variable SIMULATED_OPERATORS names a file.
bool records_operators();

/// Appends an operator ("aten::add.out") to that file, once per process. Processes and threads may
/// share the file. Throws std::runtime_error if the file cannot be written.
void record_operator(const std::string& name);

}  // namespace longspan::testing::accelerator
