// Measured times of messages between ranks, and the slow links among them.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <string>
#include <vector>

#include "longspan/comm/group.h"
#include "longspan/comm/mesh.h"
#include "longspan/plan/network_rates.h"
#include "longspan/rendezvous/rendezvous.h"

namespace longspan {

/// Seconds of a message of `bytes` bytes from each rank to each rank.
struct LinkTimes {
  int num_ranks = 0, ranks_per_machine = 1;
  int64_t bytes = 0;
  std::vector<double> seconds;  // [from, to]; 0: not measured
  /// The name of the neighbours' place in messages, since `ranks_per_machine` is fast_domain_size
  /// if a run has this key.
  const char* places = "machines";

  double of(int from, int to) const { return seconds[static_cast<size_t>(from * num_ranks + to)]; }
  bool crosses(int from, int to) const {
    return from / ranks_per_machine != to / ranks_per_machine;
  }
  /// Returns the median of the links between machines, or of those within machines; 0: none.
  double usual(bool between) const;
};

/// Returns distances between the ranks of links: all of them, or only some links between each
/// machine and others.
std::vector<int> distances_of_links(int num_ranks, int ranks_per_machine, bool all);

/// Sends messages of `bytes` bytes from each rank to the rank at each distance, every second link
/// at once, so that each rank either sends or receives. The time of a link is its receiver's, the
/// least of `repeats`, after one more. The result is the same on all ranks. Collective.
LinkTimes measure_links(const Group& group, int ranks_per_machine,
                        const std::vector<int>& distances, int64_t bytes, at::Device device,
                        int repeats);

/// Returns the rates that the cost model takes. `small`: of messages of a few bytes.
NetworkRates rates_of(const LinkTimes& large, const LinkTimes& small);

/// Returns a sentence for each slow network card, and for each other slow link: one that takes more
/// than twice the median of the links between machines, or of those within machines. `names`: of
/// the ranks. At most `most` sentences, and one with the number of the others.
std::vector<std::string> slow_links(const LinkTimes& times, const std::vector<std::string>& names,
                                    size_t most = 8);

/// Returns this rank's host with its GPU or network interface, for messages.
std::string name_of_card(const Rendezvous& where, at::Device device);

/// Returns LinkTimes::places of `near` neighbouring ranks on a fast link.
const char* places_of(int near, const Rendezvous& where);

/// The short measurement at the start of a run on several machines: returns the lines that
/// rank 0 prints. `near`: neighbouring ranks on a fast link, whose links are not measured. If the
/// ranks have different such numbers, one line says that nothing is measured. The messages have a
/// group of their own, so that no connection of theirs stays. Collective.
std::vector<std::string> check_network(const Mesh& mesh, const Rendezvous& where, int near,
                                       at::Device device);

}  // namespace longspan
