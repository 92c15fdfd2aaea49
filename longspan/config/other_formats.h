// Configuration files of other programs.
#pragma once

#include <string>
#include <vector>

namespace longspan {

/// What a file with these keys is and what to do, when it is written for another program (or for
/// another trainer of LLaMA-Factory's); empty when it is not.
std::string other_format(const std::vector<std::string>& keys);

/// Lines such as `learning_rate = 1e-4`, which YAML does not read as a key and its value: the first
/// of them, and how to write it; empty when there is none.
std::string line_with_equals(const std::string& yaml);

}  // namespace longspan
