// Advice on logging services that report_to names and that are unsupported. No torch.
#pragma once

#include <string>
#include <string_view>

namespace longspan {

/// Returns how the user gets logged numbers into the service. Where the service's package has a
/// call that takes an entry of log_history, the text names it.
std::string remedy_of_service(std::string_view name);

}  // namespace longspan
