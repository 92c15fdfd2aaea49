// Values in torchrun's key-value store that outlive restarts of the workers.
#pragma once

#include <string>

#include "longspan/rendezvous/rendezvous.h"

namespace longspan {

/// Returns the value that keep_at_launcher() stored under this name; "" where no value is stored,
/// or where another launcher than torchrun serves the run.
std::string recall_from_launcher(const Rendezvous& where, const std::string& name);

/// Stores a value for restarted workers. No-op without such a store.
void keep_at_launcher(const Rendezvous& where, const std::string& name, const std::string& value);

}  // namespace longspan
