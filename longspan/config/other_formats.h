// Recognizes configuration files of other programs.
#pragma once

#include <string>
#include <vector>

namespace longspan {

/// Returns what a file with these keys is and what to do, where another program (or another trainer
/// of LLaMA-Factory) reads it; else "".
std::string other_format(const std::vector<std::string>& keys);

/// Returns the first line like `learning_rate = 1e-4`, which YAML does not read as a key and a
/// value, and how to write it; "" where there is none.
std::string line_with_equals(const std::string& yaml);

}  // namespace longspan
