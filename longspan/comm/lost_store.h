// What is said when the run's key-value store is gone, which was to tell who else is.
#pragma once

#include <optional>
#include <string>

#include "longspan/comm/beat.h"
#include "longspan/comm/mesh.h"

namespace longspan {

/// Who serves the store cannot be asked who is gone: it is that one itself, or the way to it.
/// `head` is the last sign of life of rank 0; `refused`: nobody listens any more at the address.
std::string why_store_is_lost(const Rendezvous& where, const std::optional<Beat>& head,
                              const std::string& own_machine, bool refused);

}  // namespace longspan
