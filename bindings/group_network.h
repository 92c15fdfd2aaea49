// The network between the ranks of a process group.
#pragma once

#include <cstdint>
#include <string>

#include "longspan/plan/network_rates.h"

namespace longspan {

struct GroupNetwork {
  int ranks_per_machine = 0;  // neighbours that share a network namespace; 0: all
  NetworkRates rates;         // of links between machines, of tensors on the CPU; rounded
};

/// Returns the network of a process group, for the cost model. The first call for a group compares
/// the machines of the ranks, and sends messages between machines. Rates are rounded to powers of
/// two, so that the noise of a measurement rarely changes a plan. The result is the same on all
/// ranks. Collective. Throws UserError, CommunicationError.
GroupNetwork network_of(const std::string& process_group, bool cuda, int64_t timeout_seconds);

/// Sets the network that network_of() returns for a process group, in place of a measurement:
/// groups that are to have the same plan take the slowest of their networks. Not collective.
void take_network(const std::string& process_group, bool cuda, const GroupNetwork& network);

/// Forgets the network of a process group.
void forget_network(const std::string& process_group);

}  // namespace longspan
