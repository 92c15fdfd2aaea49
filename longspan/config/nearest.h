// Which known name did the user mean? No torch.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace longspan {

/// Of longer names no more is compared: they are nobody's slip of the pen.
inline constexpr size_t kMostComparedLetters = 100;

/// Edits that turn a into b: one letter inserted, dropped, replaced, or two neighbours swapped.
/// Looks at the first kMostComparedLetters of each.
int edit_distance(std::string_view a, std::string_view b);

/// The name with the fewest edits; the first of several. `names` is not empty.
std::string nearest_name(std::string_view given, const std::vector<std::string>& names);

}  // namespace longspan
