#include "longspan/comm/mesh.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <utility>

#include "longspan/base/user_error.h"
#include "longspan/comm/backend.h"
#include "longspan/comm/link.h"
#include "longspan/comm/submeshes.h"
#include "longspan/plan/rank_groups.h"
#include "longspan/rendezvous/communication_error.h"
#include "longspan/rendezvous/endpoint.h"
#include "longspan/rendezvous/store.h"

namespace longspan {
namespace {

// Returns this machine's address on the way to `peer`. Connecting a datagram socket sends nothing,
// but makes the kernel choose an interface. Resolving the own host name, as torch does, yields
// loopback on many machines (Debian's 127.0.1.1), which other machines cannot reach.
std::string local_address_towards(const std::string& peer, int port) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_DGRAM;
  if (getaddrinfo(peer.c_str(), std::to_string(port).c_str(), &hints, &found) != 0) return "";
  std::string address;
  for (addrinfo* at = found; at != nullptr && address.empty(); at = at->ai_next) {
    const int fd = socket(at->ai_family, at->ai_socktype | SOCK_CLOEXEC, 0);
    if (fd < 0) continue;
    sockaddr_storage own{};
    socklen_t length = sizeof(own);
    char text[INET6_ADDRSTRLEN];
    if (connect(fd, at->ai_addr, at->ai_addrlen) == 0 &&
        getsockname(fd, reinterpret_cast<sockaddr*>(&own), &length) == 0 &&
        getnameinfo(reinterpret_cast<sockaddr*>(&own), length, text, sizeof(text), nullptr, 0,
                    NI_NUMERICHOST) == 0) {
      address = text;
    }
    close(fd);
  }
  freeaddrinfo(found);
  return address;
}

bool is_loopback(const std::string& address) {
  return address.starts_with("127.") || address == "::1";
}

// Addresses that no machine has (RFC 5737, RFC 3849), on whose way the default route lies.
constexpr const char* kElsewhere[] = {"192.0.2.1", "2001:db8::1"};

// Returns the address of this machine on the default route. Without such a route, returns the
// address of the first interface that others may reach; "" where there is none. The first interface
// may belong to containers (docker0), which only this machine can reach.
std::string outside_address() {
  for (const char* elsewhere : kElsewhere) {
    std::string routed = local_address_towards(elsewhere, /*port=*/9);
    if (!routed.empty() && !is_loopback(routed)) return routed;
  }
  ifaddrs* interfaces = nullptr;
  std::string address;
  if (getifaddrs(&interfaces) != 0) return address;
  for (ifaddrs* at = interfaces; at != nullptr && address.empty(); at = at->ifa_next) {
    if (at->ifa_addr == nullptr || at->ifa_addr->sa_family != AF_INET) continue;
    if ((at->ifa_flags & IFF_LOOPBACK) != 0 || (at->ifa_flags & IFF_RUNNING) == 0) continue;
    char text[INET_ADDRSTRLEN];
    if (getnameinfo(at->ifa_addr, sizeof(sockaddr_in), text, sizeof(text), nullptr, 0,
                    NI_NUMERICHOST) == 0) {
      address = text;
    }
  }
  freeifaddrs(interfaces);
  return address;
}

}  // namespace

Group Mesh::* member_of(GroupKind kind) {
  switch (kind) {
    using enum GroupKind;
    case kWorld:
      return &Mesh::world;
    case kSequence:
      return &Mesh::sequence;
    case kData:
      return &Mesh::data;
    case kRing:
      return &Mesh::ring;
    case kUlysses:
      return &Mesh::ulysses;
    case kWindow:
      return &Mesh::window;
    case kWindows:
      return &Mesh::windows;
    case kShard:
      return &Mesh::shard;
    case kReplicas:
      return &Mesh::replicas;
    case kSlices:
      return &Mesh::slices;
    case kExperts:
      return &Mesh::experts;
    case kExpertShard:
      return &Mesh::expert_shard;
    case kExpertReplicas:
      return &Mesh::expert_replicas;
  }
  __builtin_unreachable();
}

std::string own_address(const Rendezvous& where) {
  std::string address = local_address_towards(where.master_address, where.master_port);
  if (address.empty() || is_loopback(address)) {
    const bool all_here = where.local_world_size >= where.world_size;
    address = all_here ? "127.0.0.1" : outside_address();
  }
  return address.empty() ? "127.0.0.1" : address;
}

void require_one_plan(c10d::Store& store, int own_rank, int size, const ParallelPlan& plan,
                      const LinkTraits& link) {
  const auto text_of = [&](const std::string& key) {  // waits for the key
    const std::vector<uint8_t> bytes = store.get(key);
    return std::string(bytes.begin(), bytes.end());
  };
  // Returns true on the last rank that arrives at this point.
  const auto is_last_at = [&](const char* point) { return store.add(point, 1) == size; };
  const std::string mine = fmt::format(
      "{} processes, {} by {} of {}, shards of {}, experts on {}, {}", plan.world_size,
      plan.sequence_size, describe_method(plan), plan.ulysses_size, plan.shard_size,
      plan.expert_parallel_size, c10::DeviceTypeName(link.device(), /*lower_case=*/true));
  if (own_rank == 0) put_text(store, "plan", mine);
  const std::string first = text_of("plan");
  if (mine != first) {
    put_text(store, fmt::format("other{}", store.add("others", 1)),
             fmt::format("{} {}", own_rank, mine));
  }
  if (is_last_at("compared")) {
    std::pair<int, std::string> lowest{size, ""};  // of the ranks with another plan
    for (int64_t i = store.add("others", 0); i > 0; --i) {
      const std::string other = text_of(fmt::format("other{}", i));
      const size_t end = other.find(' ');
      lowest = std::min(lowest, {std::stoi(other.substr(0, end)), other.substr(end + 1)});
    }
    put_text(store, "difference",
             lowest.first == size ? "" : fmt::format("rank {}: {}", lowest.first, lowest.second));
  }
  const std::string difference = text_of("difference");
  if (difference.empty()) return;
  // Rank 0 may serve the store, and must not end before all have read.
  if (is_last_at("read")) put_text(store, "all_have_read", "");
  if (own_rank == 0) {
    try {
      store.wait({"all_have_read"}, std::chrono::seconds(5));
    } catch (const std::exception&) {  // a rank has ended, with the same message as this one
    }
  }
  throw UserError(fmt::format(
      "The ranks would share rows in different ways: rank 0: {}; {}. Start as many processes on "
      "each machine, with the same configuration, or set sequence_parallel_mode (and, for {}, its "
      "degrees), zero_shard_size and device.",
      first, difference, names_of(methods_that_take(kUlyssesDegree), " and ")));
}

Mesh make_mesh_over(const GroupPlace& world, const ParallelPlan& plan, const LinkTraits& link) {
  const auto counts = std::make_shared<CollectiveCounts>();
  Mesh mesh = make_mesh_over(world, plan, link, counts, /*prefix=*/"");
  mesh.parts = std::make_shared<Submeshes>(world, link, counts);
  return mesh;
}

Mesh make_mesh_over(const GroupPlace& world, const ParallelPlan& plan, const LinkTraits& link,
                    const std::shared_ptr<CollectiveCounts>& counts, const std::string& prefix) {
  Mesh mesh;
  mesh.collectives = counts;
  c10::intrusive_ptr<c10d::Backend> whole;  // of all ranks
  const auto connected = [&](const RankGroup& group, const std::string& name,
                             const LinkTraits& by) {
    const std::string own_name = fmt::format("{}{}", name, group.index);
    GroupPlace place = world;
    place.store = c10::make_intrusive<c10d::PrefixStore>(own_name, world.store);
    place.rank = group.rank;
    place.size = group.size;
    if (&by == &link) {  // groups of one kind have equal sizes, so all ranks are in one of them
      place.whole = whole ? &whole : nullptr;
      place.color = group.index;
    }
    const c10::intrusive_ptr<c10d::Backend> backend = by.make_backend(place);
    if (group.kind == GroupKind::kWorld) whole = backend;
    return group_over(backend, name, by, counts->of(prefix + own_name));
  };
  for (const RankGroup& group : groups_of_rank(plan, world.rank)) {
    if (group.same_as) {
      mesh.*member_of(group.kind) = mesh.*member_of(*group.same_as);
    } else if (group.size > 1) {
      mesh.*member_of(group.kind) = connected(group, std::string(group.name), link);
    }
    if (group.kind != GroupKind::kData || group.size == 1) continue;
    mesh.data_hosts =
        link.of_hosts == nullptr ? mesh.data : connected(group, "data_hosts", *link.of_hosts);
  }
  return mesh;
}

void shut_down(const Mesh& mesh) {
  if (mesh.parts) mesh.parts->shut_down();
  const std::vector<RankGroup> kinds = groups_of_rank(ParallelPlan{}, 0);
  for (auto group = kinds.rbegin(); group != kinds.rend(); ++group) {
    (mesh.*member_of(group->kind)).shut_down();
  }
}

Traffic sequence_traffic(const Mesh& mesh) {
  Traffic total;
  std::vector<Group> counted;
  for (const RankGroup& kind : groups_of_rank({}, 0)) {
    const Group& group = mesh.*member_of(kind.kind);
    if (!kind.shares_row || std::ranges::find(counted, group) != counted.end()) continue;
    counted.push_back(group);
    total += group.traffic();
  }
  return total;
}

Mesh make_mesh(const Rendezvous& where, const ParallelPlan& plan, Link link,
               int64_t timeout_seconds) {
  return make_meshes(where, {plan}, link, timeout_seconds).front();
}

std::vector<Mesh> make_meshes(const Rendezvous& where, const std::vector<ParallelPlan>& plans,
                              Link link, int64_t timeout_seconds) {
  const LinkTraits& traits = where.link != nullptr ? *where.link : traits_of(link);
  if (plans.empty() || plans[0].world_size == 1) return std::vector<Mesh>(plans.size());
  try {
    const std::chrono::seconds patience = patience_to_meet(timeout_seconds);
    const auto deadline = [&](int64_t num_groups) {
      return std::chrono::steady_clock::now() + patience + num_groups * traits.time_to_meet;
    };
    const std::function<void()> prepare_thread = traits.prepare_threads();
    c10::intrusive_ptr<c10d::Store> store = open_store(where, where.serves_store(), patience);
    store = c10::make_intrusive<c10d::PrefixStore>(where.store_prefix + "/longspan", store);
    store->setTimeout(patience);
    std::vector<Mesh> meshes;
    for (const ParallelPlan& plan : plans) {
      auto keys =
          c10::make_intrusive<c10d::PrefixStore>(fmt::format("mesh{}", meshes.size()), store);
      // Returns once all ranks have come. The time to connect begins then, so that late ranks, or a
      // store that opens late, take none of it.
      while_meeting<bool>(deadline(1), [keys, where, plan, &traits] {
        require_one_plan(*keys, where.rank, where.world_size, plan, traits);
        return true;
      });
      const auto connect = [keys, where, plan, &traits, timeout_seconds, prepare_thread] {
        prepare_thread();
        return make_mesh_over({.store = keys,
                               .rank = where.rank,
                               .size = where.world_size,
                               .timeout_seconds = timeout_seconds,
                               .host = own_address(where),
                               .interfaces = where.interfaces},
                              plan, traits);
      };
      // Gloo waits five times its timeout for a rank that has published its address and does not
      // come, and NCCL waits forever.
      meshes.push_back(while_meeting<Mesh>(deadline(std::ssize(connected_groups(plan))), connect));
    }
    return meshes;
  } catch (const UserError&) {
    throw;
  } catch (const std::exception& error) {
    throw CommunicationError(fmt::format(
        "Rank {} of {} could not connect to its peers through {}: {}. Check MASTER_ADDR and "
        "MASTER_PORT (is the port taken by another run?) and, between machines, "
        "GLOO_SOCKET_IFNAME.",
        where.rank, where.world_size, endpoint_text(where.master_address, where.master_port),
        brief_reason(error)));
  }
}

}  // namespace longspan
