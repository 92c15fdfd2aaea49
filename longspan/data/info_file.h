// The file dataset_info.json as a whole. No torch.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace longspan {

/// Returns dataset_info.json; an empty object if there is no such file. Throws UserError: UTF-16,
/// broken JSON (with line), no object.
nlohmann::json read_info(const std::string& info_file);

/// Throws UserError for a name that `info` does not have, with the nearest name.
[[noreturn]] void refuse_name(const std::string& name, const nlohmann::json& info,
                              const std::string& info_file);

}  // namespace longspan
