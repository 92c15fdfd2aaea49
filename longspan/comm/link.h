// Properties of links as data. Groups and meshes read these properties, and do not depend on a
// certain link.
#pragma once

#include <c10/core/DeviceType.h>
#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <string>

#include "longspan/comm/group.h"

namespace c10d {
class Backend;
class Store;
}  // namespace c10d

namespace longspan {

class CommunicationError;

/// The rendezvous of a rank with the other ranks of a group.
struct GroupPlace {
  c10::intrusive_ptr<c10d::Store> store;  // shared by the group's ranks only
  int rank, size;
  int64_t timeout_seconds;  // of a collective
  std::string host;         // this machine's address
  std::string interfaces;   // network interfaces, used instead of `host`; empty: none
  /// A group's backend whose ranks all make one of several groups at the same time, and the number
  /// of this group among them. NCCL splits it, which takes no questions to the store. Null: the
  /// group is made by itself. Only make_backend() uses the pointer.
  const c10::intrusive_ptr<c10d::Backend>* whole = nullptr;
  int color = 0;
};

struct LinkTraits {
  c10::DeviceType (&device)();  // the device of the backend's tensors
  bool copies;                  // a group's tensors are on another device, and are copied
  bool coalesces;               // the backend starts the messages of one exchange together
  bool ends_with_peers;         // the backend's destructor waits for its peers, even for dead peers
  bool waits_for_none;          // no collective blocks the host, so an error comes from this rank
  bool lets_go_late;  // the backend holds tensors for a moment after a collective has ended
  /// Time beyond patience_to_meet(): for all ranks to come, and then for each group to connect.
  std::chrono::seconds time_to_meet;
  std::string (&reason_of)(const std::exception& error);  // the useful part of a message
  /// Called on the run's thread. Returns a function that another thread calls before it makes a
  /// backend.
  std::function<void()> (&prepare_threads)();
  c10::intrusive_ptr<c10d::Backend> (&make_backend)(const GroupPlace& place);
  /// The link of the additional group for CPU tensors (Mesh::data_hosts). Null: this link carries
  /// CPU tensors itself.
  const LinkTraits* of_hosts = nullptr;
  /// The backend's own reduce-scatter sums; otherwise all-to-alls in its place.
  bool scatters_sums = false;
  /// Called with the error of a collective that has failed, which is thrown if the call returns.
  /// Null: nothing is called.
  void (*on_error)(const CommunicationError& error) = nullptr;
};

const LinkTraits& traits_of(Link link);

}  // namespace longspan
