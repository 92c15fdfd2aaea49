// Unsupported services for logged numbers, which report_to knows by name. No torch.
#pragma once

#include <string>
#include <string_view>

namespace longspan {

/// How the user gets logged numbers into the service that report_to names, with the call of the
/// service's own package that takes an entry of log_history, where there is one.
std::string remedy_of_service(std::string_view name);

}  // namespace longspan
