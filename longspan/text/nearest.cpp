#include "longspan/text/nearest.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "longspan/text/shown.h"

namespace longspan {

int edit_distance(std::string_view a, std::string_view b) {
  a = a.substr(0, kMostComparedLetters);
  b = b.substr(0, kMostComparedLetters);
  // Optimal string alignment, with three rows of the table in memory.
  std::vector<int> before(b.size() + 1), above(b.size() + 1), row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) above[j] = static_cast<int>(j);
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = static_cast<int>(i);
    for (size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({above[j] + 1, row[j - 1] + 1, above[j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        row[j] = std::min(row[j], before[j - 2] + 1);
      }
    }
    before.swap(above);
    above.swap(row);
  }
  return above[b.size()];
}

bool is_near(std::string_view a, std::string_view b) {
  const int distance = edit_distance(a, b);
  const size_t longer = std::min(std::max(a.size(), b.size()), kMostComparedLetters);
  return distance <= std::max<int>(1, static_cast<int>(longer / 3));
}

std::string nearest_name(std::string_view given, const std::vector<std::string>& names) {
  const auto nearest = std::ranges::min_element(
      names, {}, [&](const std::string& name) { return edit_distance(given, name); });
  return nearest != names.end() && is_near(given, *nearest) ? *nearest : "";
}

std::string suggestion(std::string_view given, const std::vector<std::string>& names,
                       std::string_view kind) {
  constexpr size_t kMostNamed = 10, kMostBytes = 60;
  const std::string nearest = nearest_name(given, names);
  if (!nearest.empty()) {
    return fmt::format("the nearest {}{}is {}", kind, kind.empty() ? "" : " ",
                       shortened(nearest, kMostBytes));
  }
  std::vector<std::string> some;
  for (size_t i = 0; i < std::min(names.size(), kMostNamed); ++i) {
    some.push_back(shortened(names[i], kMostBytes));
  }
  return fmt::format("there are: {}{}", fmt::join(some, ", "),
                     names.size() > kMostNamed ? ", ..." : "");
}

}  // namespace longspan
