#include "longspan/base/names.h"

#include <algorithm>
#include <utility>

namespace longspan {

std::vector<std::string> split_names(const std::string& list) {
  std::vector<std::string> names;
  for (size_t begin = 0; begin <= list.size();) {
    const size_t comma = std::min(list.find(',', begin), list.size());
    std::string name = list.substr(begin, comma - begin);
    name.erase(0, name.find_first_not_of(" \t"));
    name.erase(name.find_last_not_of(" \t") + 1);
    if (!name.empty()) names.push_back(std::move(name));
    begin = comma + 1;
  }
  return names;
}

}  // namespace longspan
