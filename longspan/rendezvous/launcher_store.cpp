#include "longspan/rendezvous/launcher_store.h"

#include <chrono>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "longspan/rendezvous/store.h"

namespace longspan {
namespace {

// Has no start's prefix, unlike Rendezvous::store_prefix.
constexpr const char* kPrefix = "/longspan";
constexpr std::chrono::seconds kPatience{30};

}  // namespace

std::string recall_from_launcher(const Rendezvous& where, const std::string& name) {
  if (!where.launcher_hosts_store) return "";
  return text_at(*connect_to_store(where, kPrefix, kPatience), name);
}

void keep_at_launcher(const Rendezvous& where, const std::string& name, const std::string& value) {
  if (!where.launcher_hosts_store) return;
  put_text(*connect_to_store(where, kPrefix, kPatience), name, value);
}

}  // namespace longspan
