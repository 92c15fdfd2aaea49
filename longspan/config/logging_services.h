// Unsupported services for logged numbers, which report_to knows by name. No torch.
#pragma once

#include <string>
#include <string_view>

namespace longspan {

/// How logged numbers reach the service of this name (as report_to has it) all the same, with its
/// own package's call where one call takes an entry of log_history.
std::string remedy_of_service(std::string_view name);

}  // namespace longspan
