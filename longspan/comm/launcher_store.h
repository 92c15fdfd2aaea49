// What torchrun's key-value store holds through restarts of the workers.
#pragma once

#include <string>

#include "longspan/comm/rendezvous.h"

namespace longspan {

/// Returns what keep_at_launcher() has stored under this name. Empty when there is nothing, or when
/// another launcher than torchrun serves the run.
std::string recall_from_launcher(const Rendezvous& where, const std::string& name);

/// Stores the value for workers that are started again. Does nothing where there is no such store.
void keep_at_launcher(const Rendezvous& where, const std::string& name, const std::string& value);

}  // namespace longspan
