#include "longspan/comm/launcher_store.h"

#include <chrono>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <vector>

#include "longspan/comm/backend.h"

namespace longspan {
namespace {

// Without the number of the attempt, unlike Rendezvous::store_prefix.
constexpr const char* kPrefix = "/longspan";
constexpr std::chrono::seconds kPatience{30};

}  // namespace

c10::intrusive_ptr<c10d::Store> connect_to_store(const Rendezvous& where, const std::string& prefix,
                                                 std::chrono::milliseconds timeout) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(where.master_port);
  options.waitWorkers = false;
  options.timeout = timeout;
  auto store = c10::make_intrusive<c10d::TCPStore>(where.master_address, options);
  store->setTimeout(timeout);
  return c10::make_intrusive<c10d::PrefixStore>(prefix, std::move(store));
}

std::optional<std::string> recall_from_launcher(const Rendezvous& where, const std::string& name) {
  if (!where.launcher_hosts_store) return std::nullopt;
  const auto store = connect_to_store(where, kPrefix, kPatience);
  if (!store->check({name})) return std::nullopt;
  const std::vector<uint8_t> bytes = store->get(name);
  return std::string(bytes.begin(), bytes.end());
}

void keep_at_launcher(const Rendezvous& where, const std::string& name, const std::string& value) {
  if (!where.launcher_hosts_store) return;
  connect_to_store(where, kPrefix, kPatience)
      ->set(name, std::vector<uint8_t>(value.begin(), value.end()));
}

}  // namespace longspan
