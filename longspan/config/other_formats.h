// Recognizes configuration files of other programs.
#pragma once

#include <string>
#include <vector>

namespace longspan {

/// Returns the format of a file with these keys and the remedy, if the file belongs to another
/// program (or another trainer of LLaMA-Factory); else "".
std::string other_format(const std::vector<std::string>& keys);

/// Returns the first line like `learning_rate = 1e-4`, which YAML does not read as a key and a
/// value, and its right form; "" where no line is like this.
std::string line_with_equals(const std::string& yaml);

}  // namespace longspan
