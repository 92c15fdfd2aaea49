// What a launcher checks before it starts processes that are to meet.
#pragma once

#include <chrono>
#include <string>

namespace longspan {

/// Throws UserError when something listens at the address that has not answered as a torch store
/// after `patience`. It is fine when nobody listens there yet.
void require_store_or_nobody(const std::string& host, int port, std::chrono::milliseconds patience);

}  // namespace longspan
