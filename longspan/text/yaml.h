// YAML -> JSON text (YAML 1.2 core scalars plus what PyYAML users write: 1e-5, yes stays a string).
// No torch.
#pragma once

#include <string>
#include <string_view>

namespace longspan {

/// Throws UserError with file name, line and column on broken YAML. `file_name` is used in messages
/// only.
std::string yaml_to_json(std::string_view yaml, const std::string& file_name);

}  // namespace longspan
