// Questions to the run's key-value store that are answered in time, or not at all.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "longspan/comm/rendezvous.h"

namespace longspan {

/// A connection to the store that a run already has, made when it is first used. Once nobody
/// listens there any more the store is gone for good: from then on every question is answered at
/// once, by nullopt or false. When what listens has not answered for `patience`, questions are
/// answered so for as long again, and the next one is asked with a patience of 2 seconds. The
/// connection in which nobody answered is ended then, and with it the thread that waits there;
/// until it has ended, questions are answered so too: a client never has more than one under way. A
/// connection that breaks while the store lives is made anew, and the question asked again: it may
/// then have been heard twice. For one thread.
class StoreClient {
 public:
  StoreClient(const Rendezvous& where, std::string prefix, std::chrono::milliseconds patience);
  ~StoreClient();
  StoreClient(const StoreClient&) = delete;
  StoreClient& operator=(const StoreClient&) = delete;

  /// For good.
  bool is_gone() const;
  /// The number under this name after adding to it; 0 where there was none.
  std::optional<int64_t> add(const std::string& key, int64_t amount);
  std::optional<bool> has(const std::string& key);
  std::optional<bool> has_all(const std::vector<std::string>& keys);
  bool put(const std::string& key, const std::string& text);
  /// The text under this name; empty: none.
  std::optional<std::string> text(const std::string& key);
  bool remove(const std::string& key);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace longspan
