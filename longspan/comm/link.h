// What sets the links of groups apart, as data: groups and meshes ask it, and know no link by name.
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

/// Where a rank meets the others of a group.
struct GroupPlace {
  c10::intrusive_ptr<c10d::Store> store;  // shared by the group's ranks alone
  int rank, size;
  int64_t timeout_seconds;  // of a collective
  std::string host;         // this machine's address
  std::string interfaces;   // of this machine, which take precedence; empty: none
};

struct LinkTraits {
  c10::DeviceType (&device)();  // where the backend takes and leaves tensors
  bool copies;           // groups are given tensors of another device, and copy them there and back
  bool coalesces;        // the backend starts the messages of one exchange together
  bool ends_with_peers;  // the backend waits for its peers when it goes, whatever became of them
  bool waits_for_none;  // no host waits in the backend for its peers: an error is the backend's own
  bool lets_go_late;    // a thread of the backend holds tensors a moment after it has told that a
                        // collective is done
  std::chrono::seconds time_to_meet;  // in which ranks connect once all of them are there
  std::string (&reason_of)(const std::exception& error);  // what of its messages helps
  /// Called on the run's thread. Returns what another thread does before it makes a backend.
  std::function<void()> (&prepare_threads)();
  c10::intrusive_ptr<c10d::Backend> (&make_backend)(const GroupPlace& place);
  /// Of groups beside it that take tensors on the CPU; null: its own take them.
  const LinkTraits* of_hosts = nullptr;
};

const LinkTraits& traits_of(Link link);

}  // namespace longspan
