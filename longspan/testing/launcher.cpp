#include "longspan/testing/launcher.h"

#include <torch/csrc/distributed/c10d/TCPStore.hpp>

namespace longspan::testing {

struct Launcher::Impl {
  c10::intrusive_ptr<c10d::TCPStore> store;
};

Launcher::Launcher() {
  c10d::TCPStoreOptions options;
  options.port = 0;
  options.isServer = true;
  options.waitWorkers = false;
  impl_.reset(new Impl{c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options)});
}

Launcher::~Launcher() = default;

Rendezvous Launcher::worker(int rank, int world_size) const {
  Rendezvous where;
  where.rank = rank;
  where.world_size = world_size;
  where.master_port = impl_->store->getPort();
  where.launcher_hosts_store = true;
  return where;
}

void Launcher::set(const std::string& key, const std::string& value) const {
  impl_->store->set(key, std::vector<uint8_t>(value.begin(), value.end()));
}

void Launcher::remove(const std::string& key) const { impl_->store->deleteKey(key); }

bool Launcher::has(const std::string& key) const { return impl_->store->check({key}); }

}  // namespace longspan::testing
