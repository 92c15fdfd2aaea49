// The message when the run's key-value store is gone, which would have told who else is gone.
#pragma once

#include <optional>
#include <string>

#include "longspan/comm/beat.h"
#include "longspan/comm/rendezvous.h"

namespace longspan {

/// Without the store nobody can say who is gone. The process that serves it is gone itself, or the
/// way to it is. `head` is the last sign of life of rank 0; `refused`: nobody listens any more at
/// the address.
std::string why_store_is_lost(const Rendezvous& where, const std::optional<Beat>& head,
                              const std::string& own_machine, bool refused);

}  // namespace longspan
