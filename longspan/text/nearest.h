// Finds the known name that a user may have meant. No torch.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace longspan {

/// Maximum number of letters that are compared. Longer names are not mistyped words.
inline constexpr size_t kMostComparedLetters = 100;

/// Returns the number of edits that turn a into b: insert, drop or replace a letter, or swap two
/// neighbours. Compares the first kMostComparedLetters of each name.
int edit_distance(std::string_view a, std::string_view b);

/// Whether one name may be a mistyped form of the other: the number of edits is at most one, or at
/// most a third of the longer name's letters.
bool is_near(std::string_view a, std::string_view b);

/// Returns the name with the fewest edits, the first of several such names; "" where no name is
/// near.
std::string nearest_name(std::string_view given, const std::vector<std::string>& names);

/// Returns "the nearest KIND is NAME" where a name is near, else "there are: A, B, C", with at most
/// ten names. `kind` may be empty.
std::string suggestion(std::string_view given, const std::vector<std::string>& names,
                       std::string_view kind = {});

}  // namespace longspan
