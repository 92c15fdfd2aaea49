// Advice on unsupported logging services in report_to. No torch.
#pragma once

#include <string>
#include <string_view>

namespace longspan {

/// Returns advice on sending logged numbers to the service. Where the service's package has a call
/// that takes an entry of log_history, the text names this call.
std::string remedy_of_service(std::string_view name);

}  // namespace longspan
