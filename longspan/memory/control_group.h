// The control groups of this process (cgroups(7)), whose limits are lower than the machine's. No
// torch.
#pragma once

#include <string>
#include <vector>

namespace longspan {

/// The folder of a control group.
struct GroupFolder {
  std::string path;
  bool version_1 = false;  // names and formats of the files differ between the versions
};

/// Returns the folders of this process's group for a controller ("memory", "cpu") and of all its
/// ancestors: each may have a limit. `root` replaces / in tests.
std::vector<GroupFolder> group_folders(const std::string& root, const std::string& controller);

/// Returns the numbers of a file in the folder of a group, before the first word that is none
/// ("max"); empty without such a file.
std::vector<double> numbers_in(const GroupFolder& group, const std::string& name);

}  // namespace longspan
