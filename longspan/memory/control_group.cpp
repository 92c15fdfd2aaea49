#include "longspan/memory/control_group.h"

#include <fmt/format.h>

#include <fstream>

namespace longspan {

std::vector<GroupFolder> group_folders(const std::string& root, const std::string& controller) {
  std::ifstream file(root + "/proc/self/cgroup");
  std::vector<GroupFolder> folders;
  // "0::/a/b" is version 2, "5:cpu,memory:/a/b" is version 1.
  for (std::string line; std::getline(file, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = fmt::format(",{},", line.substr(first + 1, second - first - 1));
    const bool version_1 = controllers != ",,";
    if (version_1 && controllers.find("," + controller + ",") == std::string::npos) continue;
    const std::string top = root + "/sys/fs/cgroup" + (version_1 ? "/" + controller : "");
    for (std::string group = line.substr(second + 1);;) {
      folders.push_back({top + group, version_1});
      const size_t slash = group.rfind('/');
      if (slash == std::string::npos) break;
      group.erase(slash);
    }
  }
  return folders;
}

std::vector<double> numbers_in(const GroupFolder& group, const std::string& name) {
  std::ifstream file(group.path + "/" + name);
  std::vector<double> numbers;
  for (double number = 0; file >> number;) numbers.push_back(number);
  return numbers;
}

}  // namespace longspan
