// A launcher's check of the master address, before the launcher starts processes.
#pragma once

#include <chrono>
#include <string>

namespace longspan {

/// Throws UserError where something listens at the address and does not answer as a torch store
/// within `patience`. Accepts an address where nothing listens yet.
void require_store_or_nobody(const std::string& host, int port, std::chrono::milliseconds patience);

}  // namespace longspan
