// The error message for a lost key-value store. Without the store, no heartbeats can name lost
// ranks.
#pragma once

#include <optional>
#include <string>

#include "longspan/liveness/beat.h"
#include "longspan/rendezvous/rendezvous.h"

namespace longspan {

/// Returns why the store is lost: the process that serves it, or the network to that process, is
/// gone. `head`: the last beat of rank 0. `refused`: the address refuses connections.
std::string why_store_is_lost(const Rendezvous& where, const std::optional<Beat>& head,
                              const std::string& own_machine, bool refused);

}  // namespace longspan
