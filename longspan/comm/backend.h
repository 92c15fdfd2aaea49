// What the files of this folder share about c10d, without its headers.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <cstdint>
#include <string>

#include "longspan/comm/communication_error.h"
#include "longspan/comm/group.h"
#include "longspan/comm/mesh.h"

namespace c10d {
class Backend;
class Store;
}  // namespace c10d

namespace longspan {

/// A group over a c10d backend. `name` appears in messages ("sequence").
Group group_over(c10::intrusive_ptr<c10d::Backend> backend, std::string name, bool cuda);

/// Gloo's process group among `size` ranks that share the store, over the network interfaces
/// that GLOO_SOCKET_IFNAME names, else over the address `host` of this machine.
c10::intrusive_ptr<c10d::Backend> make_gloo_backend(c10::intrusive_ptr<c10d::Store> store, int rank,
                                                    int size, int64_t timeout_seconds,
                                                    const std::string& host);

/// Nobody listens any more where the run's store was.
class StoreIsGone : public CommunicationError {
 public:
  using CommunicationError::CommunicationError;
};

/// The first connection to a run's store, which another rank may still have to open, or the store
/// itself. Throws CommunicationError, some seconds after `timeout` at the latest: what is wrong
/// with the address or with what listens there.
c10::intrusive_ptr<c10d::Store> open_store(const Rendezvous& where, bool serves,
                                           std::chrono::milliseconds timeout);

/// A connection of its own to the store that a run already has. Throws StoreIsGone at once where
/// nobody listens any more, else as open_store.
c10::intrusive_ptr<c10d::Store> connect_to_store(const Rendezvous& where, const std::string& prefix,
                                                 std::chrono::milliseconds timeout);

/// What the store has under this name, without waiting for it; empty: nothing.
std::string text_at(c10d::Store& store, const std::string& key);
void put_text(c10d::Store& store, const std::string& key, const std::string& text);

/// All groups of one rank of a plan, over a store that all ranks share.
Mesh make_mesh_over(c10::intrusive_ptr<c10d::Store> store, int rank, const ParallelPlan& plan,
                    bool cuda, int64_t timeout_seconds, const std::string& host);

}  // namespace longspan
