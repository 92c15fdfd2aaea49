#include "bindings/group_network.h"

#include <ATen/Context.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <mutex>
#include <system_error>
#include <vector>

#include "bindings/attention_context.h"
#include "longspan/comm/network_links.h"
#include "longspan/files/process_identity.h"

namespace longspan {
namespace {

constexpr int64_t kLargeMessage = int64_t{4} << 20, kSmallMessage = 8;
constexpr int kRepeats = 2;

struct Known {
  std::mutex mutex;
  std::map<std::string, GroupNetwork> networks;
};

std::string key_of(const std::string& process_group, bool cuda) {
  return (cuda ? "cuda " : "cpu ") + process_group;
}

Known& known() {
  static auto* known = new Known;
  return *known;
}

/// Containers of one machine exchange messages over a network, too.
std::string own_network() {
  std::error_code error;
  return own_machine() + " " + std::filesystem::read_symlink("/proc/self/ns/net", error).string();
}

/// Returns the number of neighbours on each machine; 1 if the ranks are not in order or machines
/// have different numbers of ranks; 0 for one machine.
int ranks_per_machine(const std::vector<std::string>& machines) {
  const auto first = std::ranges::count(machines, machines.front());
  if (first == std::ssize(machines)) return 0;
  for (int64_t rank = 0; rank < std::ssize(machines); ++rank) {
    if (machines[rank] != machines[rank / first * first] ||
        std::ranges::count(machines, machines[rank]) != first) {
      return 1;
    }
  }
  return static_cast<int>(first);
}

double rounded(double rate) { return rate > 0 ? std::exp2(std::round(std::log2(rate))) : 0.0; }

GroupNetwork measure(const Group& group, bool cuda) {
  GroupNetwork network{.ranks_per_machine = ranks_per_machine(group.gather_text(own_network())),
                       .rates = {}};
  const int near = network.ranks_per_machine;
  // Messages between GPUs would keep NCCL's buffers. Where there are GPUs, a model that is on the
  // CPU now may be moved to them.
  if (near == 0 || cuda || at::hasCUDA()) return network;
  const std::vector<int> distances = distances_of_links(group.size(), near, /*all=*/false);
  const auto times = [&](int64_t bytes) {
    return measure_links(group, near, distances, bytes, at::kCPU, kRepeats);
  };
  network.rates = rates_of(times(kLargeMessage), times(kSmallMessage));
  network.rates.between_bytes = rounded(network.rates.between_bytes);
  network.rates.between_delay = rounded(network.rates.between_delay);
  network.rates.inside_bytes = network.rates.inside_delay = 0;  // assumed
  network.rates.ranks_per_machine = near;
  return network;
}

}  // namespace

GroupNetwork network_of(const std::string& process_group, bool cuda, int64_t timeout_seconds) {
  if (process_group.empty()) return {};
  Known& all = known();
  const std::lock_guard lock(all.mutex);
  const std::string key = key_of(process_group, cuda);
  const auto found = all.networks.find(key);
  if (found != all.networks.end()) return found->second;
  return all.networks[key] = measure(group_of(process_group, cuda, timeout_seconds), cuda);
}

void take_network(const std::string& process_group, bool cuda, const GroupNetwork& network) {
  Known& all = known();
  const std::lock_guard lock(all.mutex);
  all.networks[key_of(process_group, cuda)] = network;
}

void forget_network(const std::string& process_group) {
  Known& all = known();
  const std::lock_guard lock(all.mutex);
  for (const bool cuda : {true, false}) all.networks.erase(key_of(process_group, cuda));
}

}  // namespace longspan
