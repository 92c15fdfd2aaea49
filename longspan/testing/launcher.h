// A launcher's key-value store, for tests of its workers.
#pragma once

#include <memory>
#include <string>

#include "longspan/comm/mesh.h"

namespace longspan::testing {

/// Serves a store on loopback for its lifetime.
class Launcher {
 public:
  Launcher();
  ~Launcher();

  /// Returns a worker's settings, as read from the environment.
  Rendezvous worker(int rank, int world_size) const;
  void set(const std::string& key, const std::string& value) const;
  void remove(const std::string& key) const;
  bool has(const std::string& key) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace longspan::testing
