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

std::string text_at(c10d::Store& store, const std::string& key) {
  if (!store.check({key})) return "";
  const std::vector<uint8_t> bytes = store.get(key);
  return {bytes.begin(), bytes.end()};
}

void put_text(c10d::Store& store, const std::string& key, const std::string& text) {
  store.set(key, std::vector<uint8_t>(text.begin(), text.end()));
}

std::string recall_from_launcher(const Rendezvous& where, const std::string& name) {
  if (!where.launcher_hosts_store) return "";
  return text_at(*connect_to_store(where, kPrefix, kPatience), name);
}

void keep_at_launcher(const Rendezvous& where, const std::string& name, const std::string& value) {
  if (!where.launcher_hosts_store) return;
  put_text(*connect_to_store(where, kPrefix, kPatience), name, value);
}

}  // namespace longspan
