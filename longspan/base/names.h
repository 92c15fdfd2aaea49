// Lists in one value: "a, b". No torch.
#pragma once

#include <string>
#include <vector>

namespace longspan {

/// Splits a list at commas, removes blanks around the parts, and drops empty parts.
std::vector<std::string> split_names(const std::string& list);

}  // namespace longspan
