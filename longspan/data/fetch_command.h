// Commands that fetch the data sets which dataset_info.json names on hubs. No torch.
#pragma once

#include <string>

namespace longspan {

/// Returns how to fetch what an entry's key names, and the entry to write then; "" if the key names
/// no place outside. `value`: the key's text. `name`: of the entry.
std::string fetch_command(const std::string& key, const std::string& value,
                          const std::string& dataset_dir, const std::string& name);

}  // namespace longspan
