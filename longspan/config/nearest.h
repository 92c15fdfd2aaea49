// Which known name did the user mean? No torch.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace longspan {

/// Only so many letters are compared: nobody mistypes a longer name.
inline constexpr size_t kMostComparedLetters = 100;

/// Edits that turn a into b: one letter inserted, dropped, replaced, or two neighbours swapped.
/// Looks at the first kMostComparedLetters of each.
int edit_distance(std::string_view a, std::string_view b);

/// Whether one may have been written for the other: at most a third of the longer one's letters, or
/// a single one, are edited.
bool is_near(std::string_view a, std::string_view b);

/// The name with the fewest edits, the first of several; empty when none is near.
std::string nearest_name(std::string_view given, const std::vector<std::string>& names);

/// "the nearest is NAME" where one is near, else "there are: A, B, C", of which no more than the
/// first ten are named. `kind` is put before "nearest"'s verb: "the nearest KIND is NAME".
std::string suggestion(std::string_view given, const std::vector<std::string>& names,
                       std::string_view kind = {});

}  // namespace longspan
