// Which known name did the user mean? No torch.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace longspan {

/// Edits that turn a into b: one letter inserted, dropped, replaced, or two neighbours swapped.
int edit_distance(std::string_view a, std::string_view b);

/// The name with the fewest edits; the first of several. `names` is not empty.
std::string nearest_name(std::string_view given, const std::vector<std::string>& names);

}  // namespace longspan
