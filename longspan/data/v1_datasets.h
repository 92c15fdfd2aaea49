// Lists of data sets of LLaMA-Factory's v1: YAML files. No torch.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

#include "longspan/data/dataset_info.h"

namespace longspan {

/// Whether a name in the key `dataset` is the path of such a list.
bool is_v1_list(const std::string& name);

/// Returns the list's entries, in order, with the keys of dataset_info.json. Paths are relative to
/// the current folder. Throws UserError.
std::vector<std::pair<std::string, nlohmann::json>> read_v1_list(const std::string& path);

/// Sets the names of columns that v1 reads where they are, and the way in which v1 joins a prompt
/// with its query.
void take_v1_columns(DatasetEntry& entry);

}  // namespace longspan
