#include "longspan/comm/network_links.h"

#include <ATen/ATen.h>
#include <arpa/inet.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <numeric>
#include <set>

#include "longspan/comm/backend.h"
#include "longspan/comm/submeshes.h"
#include "longspan/files/process_identity.h"
#include "longspan/text/bytes.h"

namespace longspan {
namespace {

using Clock = std::chrono::steady_clock;

/// A link takes at most so many times the median.
constexpr double kSlow = 2;

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + std::ssize(values) / 2;
  std::ranges::nth_element(values, middle);
  return *middle;
}

double since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

void wait_for(at::Device device) {
  if (device.is_cpu()) return;
  c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index());
}

/// Links of one distance are rings of ranks. Every second link of a ring is measured in a turn, so
/// that no rank waits for two of them; the last link of a ring of odd length has a turn of its own.
int num_turns(int num_ranks, int distance) {
  return num_ranks / std::gcd(num_ranks, distance) % 2 == 0 ? 2 : 3;
}

/// Returns the turn of the link from this rank.
int turn_of(int rank, int num_ranks, int distance) {
  const int rings = std::gcd(num_ranks, distance), length = num_ranks / rings;
  int place = 0;
  for (int at = rank % rings; at != rank; at = (at + distance) % num_ranks) ++place;
  return length % 2 == 1 && place == length - 1 ? 2 : place % 2;
}

std::string rate_text(int64_t bytes, double seconds) {
  return fmt::format("{:.3g} GB/s", static_cast<double>(bytes) / seconds / 1e9);
}

/// Returns the name of the network interface with this address; the address if there is none.
std::string interface_of(const std::string& address) {
  ifaddrs* interfaces = nullptr;
  if (getifaddrs(&interfaces) != 0) return address;
  std::string found = address;
  for (ifaddrs* at = interfaces; at != nullptr; at = at->ifa_next) {
    if (at->ifa_addr == nullptr) continue;
    const int family = at->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    char text[INET6_ADDRSTRLEN + IF_NAMESIZE];
    const socklen_t size = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    if (getnameinfo(at->ifa_addr, size, text, sizeof(text), nullptr, 0, NI_NUMERICHOST) == 0 &&
        address == text) {
      found = at->ifa_name;
      break;
    }
  }
  freeifaddrs(interfaces);
  return found;
}

}  // namespace

double LinkTimes::usual(bool between) const {
  std::vector<double> of_kind;
  for (int from = 0; from < num_ranks; ++from) {
    for (int to = 0; to < num_ranks; ++to) {
      if (of(from, to) > 0 && crosses(from, to) == between) of_kind.push_back(of(from, to));
    }
  }
  return median(std::move(of_kind));
}

std::vector<int> distances_of_links(int num_ranks, int ranks_per_machine, bool all) {
  std::vector<int> distances;
  if (all) {
    for (int distance = 1; distance < num_ranks; ++distance) distances.push_back(distance);
    return distances;
  }
  for (int distance = ranks_per_machine; distance < num_ranks; distance *= 2) {
    distances.push_back(distance);
  }
  return distances;
}

LinkTimes measure_links(const Group& group, int ranks_per_machine,
                        const std::vector<int>& distances, int64_t bytes, at::Device device,
                        int repeats) {
  const int P = group.size();
  LinkTimes times{.num_ranks = P,
                  .ranks_per_machine = ranks_per_machine,
                  .bytes = bytes,
                  .seconds = std::vector<double>(static_cast<size_t>(P) * P)};
  const at::TensorOptions bytes_here = at::TensorOptions(device).dtype(at::kByte);
  const at::Tensor message = at::zeros({bytes}, bytes_here),
                   arrived = at::empty({bytes}, bytes_here);
  std::vector<double> own;  // of the link from the rank at each distance
  for (const int distance : distances) {
    const int to = (group.rank() + distance) % P, from = (group.rank() + P - distance) % P;
    double least = std::numeric_limits<double>::infinity();
    for (int turn = 0; turn < num_turns(P, distance); ++turn) {
      std::vector<Group::Message> sent, received;
      if (turn_of(group.rank(), P, distance) == turn) sent.push_back({to, 0, message});
      if (turn_of(from, P, distance) == turn) received.push_back({from, 0, arrived});
      for (int i = 0; i <= repeats; ++i) {
        wait_for(device);
        group.barrier();
        const Clock::time_point start = Clock::now();
        group.exchange(sent, received, /*num_slots=*/1).wait_all();
        wait_for(device);
        // The first message connects the ranks.
        if (i > 0 && !received.empty()) least = std::min(least, since(start));
      }
    }
    own.push_back(least);
  }
  if (own.empty()) return times;
  const auto D = std::ssize(own);
  const at::Tensor all_PD =
      group.all_gather(at::tensor(own, at::kDouble).unsqueeze(0).to(device)).wait().cpu();
  const auto* const all = all_PD.const_data_ptr<double>();
  for (int from = 0; from < P; ++from) {
    for (int64_t d = 0; d < D; ++d) {
      const int to = (from + distances[static_cast<size_t>(d)]) % P;
      times.seconds[static_cast<size_t>(from * P + to)] = all[to * D + d];
    }
  }
  return times;
}

NetworkRates rates_of(const LinkTimes& large, const LinkTimes& small) {
  const auto rate = [&](bool between) {
    const double seconds = large.usual(between);
    return seconds > 0 ? static_cast<double>(large.bytes) / seconds : 0.0;
  };
  return {.inside_bytes = rate(false),
          .between_bytes = rate(true),
          .inside_delay = small.usual(false),
          .between_delay = small.usual(true)};
}

std::vector<std::string> slow_links(const LinkTimes& times, const std::vector<std::string>& names,
                                    size_t most) {
  const int P = times.num_ranks;
  const auto rank_text = [&](int rank) {
    return fmt::format("rank {} ({})", rank, names[static_cast<size_t>(rank)]);
  };
  std::vector<std::string> sentences;
  for (const bool between : {true, false}) {
    const double usual = times.usual(between);
    const auto is_measured = [&](int from, int to) {
      return times.of(from, to) > 0 && times.crosses(from, to) == between;
    };
    const auto is_slow = [&](int from, int to) {
      return is_measured(from, to) && times.of(from, to) > kSlow * usual;
    };
    const std::string where = fmt::format("{} {}", between ? "between" : "within", times.places);
    // A card is slow if most of its links to several ranks are.
    std::set<int> cards;
    for (int rank = 0; rank < P; ++rank) {
      int peers = 0, slow_peers = 0;
      std::vector<double> seconds;
      for (int other = 0; other < P; ++other) {
        if (!is_measured(rank, other) && !is_measured(other, rank)) continue;
        ++peers;
        slow_peers += is_slow(rank, other) || is_slow(other, rank);
        seconds.push_back(std::max(times.of(rank, other), times.of(other, rank)));
      }
      if (peers < 2 || 2 * slow_peers <= peers) continue;
      cards.insert(rank);
      sentences.push_back(fmt::format(
          "slow network: {} exchanges {} with other ranks at {}; the median of links {} is {}. "
          "Check this card, its cable and its switch.",
          rank_text(rank), name_bytes(times.bytes), rate_text(times.bytes, median(seconds)), where,
          rate_text(times.bytes, usual)));
    }
    for (int from = 0; from < P; ++from) {
      for (int to = 0; to < P; ++to) {
        if (!is_slow(from, to) || cards.contains(from) || cards.contains(to)) continue;
        sentences.push_back(fmt::format(
            "slow network: the link from {} to {} has {}; the median of links {} is {}.",
            rank_text(from), rank_text(to), rate_text(times.bytes, times.of(from, to)), where,
            rate_text(times.bytes, usual)));
      }
    }
  }
  if (sentences.size() > most) {
    const size_t others = sentences.size() - most;
    sentences.resize(most);
    sentences.push_back(fmt::format("slow network: {} more such links", others));
  }
  return sentences;
}

std::string name_of_card(const Rendezvous& where, at::Device device) {
  if (!device.is_cpu()) return fmt::format("host {}, GPU {}", own_host(), device.index());
  return fmt::format(
      "host {}, network interface {}", own_host(),
      where.interfaces.empty() ? interface_of(own_address(where)) : where.interfaces);
}

const char* places_of(int near, const Rendezvous& where) {
  return near == where.local_world_size ? "machines" : "fast domains";
}

std::vector<std::string> check_network(const Mesh& mesh, const Rendezvous& where, int near,
                                       at::Device device) {
  const Group& world = mesh.world;
  if (world.size() == 1) return {};
  const std::vector<std::string> numbers = world.gather_text(std::to_string(near)),
                                 hosts = world.gather_text(own_host());
  for (size_t rank = 1; rank < numbers.size(); ++rank) {
    if (numbers[rank] == numbers[0]) continue;
    return {fmt::format(
        "The network is not measured: machines have different numbers of processes ({} has {}, {} "
        "has {}).",
        hosts[0], numbers[0], hosts[rank], numbers[rank])};
  }
  if (near >= world.size()) return {};
  std::vector<std::string> names = world.gather_text(name_of_card(where, device));
  const int64_t bytes = int64_t{1} << (device.is_cpu() ? 20 : 24);
  const std::vector<int> distances = distances_of_links(world.size(), near, /*all=*/false);
  const Group messages = mesh.parts->temporary("network");
  LinkTimes large = measure_links(messages, near, distances, bytes, device, /*repeats=*/3);
  large.places = places_of(near, where);
  const LinkTimes small = measure_links(messages, near, distances, 8, device, /*repeats=*/3);
  messages.shut_down();
  std::vector<std::string> lines{fmt::format(
      "Network between {}: {} to and from each process, {:.0f} us for a small message "
      "(medians of {} links)",
      large.places, rate_text(bytes, large.usual(true)), 1e6 * rates_of(large, small).between_delay,
      static_cast<int64_t>(distances.size()) * world.size())};
  for (const std::string& slow : slow_links(large, names)) lines.push_back("warning: " + slow);
  return lines;
}

}  // namespace longspan
