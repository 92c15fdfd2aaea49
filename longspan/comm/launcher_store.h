// What torchrun's key-value store keeps through restarts of the workers.
#pragma once

#include <string>

#include "longspan/comm/mesh.h"

namespace longspan {

/// Empty when nothing is kept under this name, or another launcher serves the run.
std::string recall_from_launcher(const Rendezvous& where, const std::string& name);

/// Does nothing where there is no such store.
void keep_at_launcher(const Rendezvous& where, const std::string& name, const std::string& value);

}  // namespace longspan
