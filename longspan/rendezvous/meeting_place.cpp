#include "longspan/rendezvous/meeting_place.h"

#include <fmt/format.h>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "longspan/base/user_error.h"
#include "longspan/rendezvous/endpoint.h"
#include "longspan/rendezvous/store.h"

namespace longspan {

void require_store_or_nobody(const std::string& host, int port,
                             std::chrono::milliseconds patience) {
  if (who_listens(host, port, patience) != Listener::kTakes) return;
  Rendezvous where;
  where.master_address = host;
  where.master_port = port;
  try {
    open_store(where, /*serves=*/false, patience);
  } catch (const CommunicationError& error) {
    throw UserError(
        fmt::format("MASTER_ADDR={} and MASTER_PORT={}: {}. Choose another port, on all nodes.",
                    host, port, error.what()));
  }
}

}  // namespace longspan
