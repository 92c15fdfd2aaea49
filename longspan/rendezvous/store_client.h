// A client of the run's key-value store with a time limit for each question.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "longspan/rendezvous/rendezvous.h"

namespace longspan {

/// A connection to the store of a running run, made at first use. Not thread-safe. Answers are
/// nullopt or false where the store does not answer:
///   - Once the store's port refuses connections, the store is gone for good. Every later request
///     fails at once.
///   - After `patience` without an answer, the client ends the connection and its waiting thread.
///     Requests then fail at once for another `patience`, and at least until that thread has ended.
///     A client therefore never has two requests in flight. The next request has a patience of 2
///     seconds.
///   - If a connection breaks while the store lives, the client connects again and repeats the
///     request. The store may then have received the request twice.
class StoreClient {
 public:
  StoreClient(const Rendezvous& where, std::string prefix, std::chrono::milliseconds patience);
  ~StoreClient();
  StoreClient(const StoreClient&) = delete;
  StoreClient& operator=(const StoreClient&) = delete;

  /// Whether the store is gone for good.
  bool is_gone() const;
  /// Adds to the number under this key and returns the sum. A missing key counts as 0.
  std::optional<int64_t> add(const std::string& key, int64_t amount);
  std::optional<bool> has(const std::string& key);
  std::optional<bool> has_all(const std::vector<std::string>& keys);
  bool put(const std::string& key, const std::string& text);
  /// Returns the text under this key; "" where the key is missing.
  std::optional<std::string> text(const std::string& key);
  bool remove(const std::string& key);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace longspan
