// Internals of comm/ that use c10d, without c10d's headers.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "longspan/comm/collective_counts.h"
#include "longspan/comm/communication_error.h"
#include "longspan/comm/group.h"
#include "longspan/comm/mesh.h"
#include "longspan/comm/own_connections.h"
#include "longspan/comm/within.h"

namespace c10d {
class Backend;
class Store;
}  // namespace c10d

namespace longspan {

struct LinkTraits;

/// Returns a group over a c10d backend. `name` appears in messages ("sequence"). `num_started`
/// counts the group's collectives, where given.
Group group_over(c10::intrusive_ptr<c10d::Backend> backend, std::string name,
                 const LinkTraits& link, CollectiveCounts::Counter num_started = nullptr);

/// Returns Gloo's process group of `size` ranks that share the store. `interfaces`: a comma list of
/// network interfaces; where it is empty, the address `host` of this machine is used.
c10::intrusive_ptr<c10d::Backend> make_gloo_backend(c10::intrusive_ptr<c10d::Store> store, int rank,
                                                    int size, int64_t timeout_seconds,
                                                    const std::string& host,
                                                    const std::string& interfaces = "");

/// Thrown where the run's store has ended: its port refuses connections.
class StoreIsGone : public CommunicationError {
 public:
  using CommunicationError::CommunicationError;
};

/// Opens a run's store. Serves it where `serves`; else connects to it and waits until the serving
/// rank has opened it. Throws CommunicationError at most 6 seconds after `timeout`, with what is
/// wrong with the address or the listener. An attempt without an answer ends soon and leaves no
/// thread and no descriptor behind. `made` receives the new connections.
c10::intrusive_ptr<c10d::Store> open_store(const Rendezvous& where, bool serves,
                                           std::chrono::milliseconds timeout,
                                           Connections* made = nullptr);

/// Opens another connection to the store of a running run. Throws StoreIsGone at once where its
/// port refuses connections; otherwise as open_store.
c10::intrusive_ptr<c10d::Store> connect_to_store(const Rendezvous& where, const std::string& prefix,
                                                 std::chrono::milliseconds timeout,
                                                 Connections* made = nullptr);

/// Returns the text under this key without waiting for one; "" where there is none.
std::string text_at(c10d::Store& store, const std::string& key);
void put_text(c10d::Store& store, const std::string& key, const std::string& text);

/// How long a rank waits for ranks that it has not met yet: ddp_timeout, but at most 300 seconds.
std::chrono::seconds patience_to_meet(int64_t timeout_seconds);

/// Time beyond patience_to_meet() in which ranks connect, once all of them are there.
inline constexpr std::chrono::seconds kTimeToMeet{10};
/// The same for NCCL, which first inspects the links of all GPUs, for each group.
inline constexpr std::chrono::seconds kTimeToMeetOnGpus{90};

/// Returns what `call` returns, or throws what it throws. Throws CommunicationError where `call` is
/// still running at `end`. The call then goes on, so it must own everything that it uses.
template <typename T>
T while_meeting(std::chrono::steady_clock::time_point end, std::function<T()> call) {
  const auto left = std::max(end - std::chrono::steady_clock::now(), decltype(end)::duration(0));
  auto result =
      within<T>(std::chrono::duration_cast<std::chrono::milliseconds>(left), std::move(call));
  if (!result) throw CommunicationError("not all of them answered in time; one may have ended");
  return *std::move(result);
}

/// Makes all groups of one rank of a plan, over a store that all ranks share. `host` and
/// `interfaces`: as in make_gloo_backend().
Mesh make_mesh_over(c10::intrusive_ptr<c10d::Store> store, int rank, const ParallelPlan& plan,
                    const LinkTraits& link, int64_t timeout_seconds, const std::string& host,
                    const std::string& interfaces = "");

}  // namespace longspan
