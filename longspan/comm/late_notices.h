// Notices for a store that is silent: they are put there when it speaks again.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "longspan/comm/rendezvous.h"

namespace longspan {

/// Has one thread while it owes the store something, and none else.
class LateNotices {
 public:
  /// prefix and patience as of a StoreClient.
  LateNotices(const Rendezvous& where, std::string prefix, std::chrono::milliseconds patience);
  /// What has not been put by then stays away. Waits for nothing: the thread ends by itself when
  /// the question that it has asked the store is answered, or has lasted `patience`.
  ~LateNotices();
  LateNotices(const LateNotices&) = delete;
  LateNotices& operator=(const LateNotices&) = delete;

  /// The store shall have something under this name, if it speaks again within `timeout`. Returns
  /// at once. Where no thread can be started the next call tries again, for this name too.
  void put(const std::string& key, std::chrono::milliseconds timeout);

 private:
  struct Owed;
  const std::shared_ptr<Owed> owed_;  // with the thread
};

}  // namespace longspan
