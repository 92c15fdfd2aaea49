// The run's key-value store, with c10d's class but without its headers.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "longspan/rendezvous/communication_error.h"
#include "longspan/rendezvous/own_connections.h"
#include "longspan/rendezvous/rendezvous.h"
#include "longspan/rendezvous/within.h"

namespace c10d {
class Store;
}

namespace longspan {

/// Thrown where the run's store has ended: its port refuses connections.
class StoreIsGone : public CommunicationError {
 public:
  using CommunicationError::CommunicationError;
};

/// Opens a run's store. Serves the store where `serves`; else connects to the store and waits until
/// the serving rank has opened it. Throws CommunicationError at most 6 seconds after `timeout`,
/// with the fault of the address or of the listener. An attempt without an answer ends soon and
/// leaves no thread and no descriptor behind. `made` receives the new connections.
c10::intrusive_ptr<c10d::Store> open_store(const Rendezvous& where, bool serves,
                                           std::chrono::milliseconds timeout,
                                           Connections* made = nullptr);

/// Opens another connection to the store of a running run. Throws StoreIsGone at once where the
/// store's port refuses connections; otherwise as open_store.
c10::intrusive_ptr<c10d::Store> connect_to_store(const Rendezvous& where, const std::string& prefix,
                                                 std::chrono::milliseconds timeout,
                                                 Connections* made = nullptr);

/// Returns the text under this key without waiting for a text; "" where the key is missing.
std::string text_at(c10d::Store& store, const std::string& key);
void put_text(c10d::Store& store, const std::string& key, const std::string& text);

/// How long a rank waits for ranks that it has not met yet: ddp_timeout, but at most 300 seconds.
std::chrono::seconds patience_to_meet(int64_t timeout_seconds);

/// Time beyond patience_to_meet() in which ranks connect, once all ranks are there.
inline constexpr std::chrono::seconds kTimeToMeet{10};

/// Returns the result of `call`, or throws the exception of `call`. Throws CommunicationError where
/// `call` is still running at `end`. The call then continues, so it must own everything that it
/// uses.
template <typename T>
T while_meeting(std::chrono::steady_clock::time_point end, std::function<T()> call) {
  const auto left = std::max(end - std::chrono::steady_clock::now(), decltype(end)::duration(0));
  auto result =
      within<T>(std::chrono::duration_cast<std::chrono::milliseconds>(left), std::move(call));
  if (!result) throw CommunicationError("not all of them answered in time; one may have ended");
  return *std::move(result);
}

}  // namespace longspan
