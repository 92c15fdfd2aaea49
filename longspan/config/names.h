// Lists in one value: "a, b". No torch.
#pragma once

#include <string>
#include <vector>

namespace longspan {

/// The parts between commas, without the blanks around them; empty ones are left out.
std::vector<std::string> split_names(const std::string& list);

}  // namespace longspan
