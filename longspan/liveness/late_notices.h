// Notices for a silent store, written when the store answers again.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "longspan/rendezvous/rendezvous.h"

namespace longspan {

/// Has one thread while any notice is pending, and none otherwise.
class LateNotices {
 public:
  /// `prefix` and `patience`: as in StoreClient.
  LateNotices(const Rendezvous& where, std::string prefix, std::chrono::milliseconds patience);
  /// Drops pending notices. Does not wait: the thread ends by itself when the store has answered
  /// its current request, or after `patience`.
  ~LateNotices();
  LateNotices(const LateNotices&) = delete;
  LateNotices& operator=(const LateNotices&) = delete;

  /// Writes the key to the store, if the store answers within `timeout`. Returns at once. Where no
  /// thread can be started, the next call retries for all pending keys.
  void put(const std::string& key, std::chrono::milliseconds timeout);

 private:
  struct Owed;
  const std::shared_ptr<Owed> owed_;  // shared with the thread
};

}  // namespace longspan
