// `longspan bench network`: measures the groups of ranks and the links between ranks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "longspan/bench/bench_device.h"
#include "longspan/plan/network_rates.h"
#include "longspan/plan/parallel_plan.h"
#include "longspan/rendezvous/rendezvous.h"

namespace longspan {

struct NetworkBenchOptions {
  int ulysses_size = 1, ring_size = 1;
  int shard_size = 1;
  int ranks_per_domain = 1;           // neighbours on a fast link
  int64_t bytes = int64_t{16} << 20;  // that a rank sends in a collective, or over a link
  int repeats = 5;
};

/// A group's collectives: medians of the repeats, on the group's slowest rank. Bytes are those that
/// a rank sends to other ranks.
struct GroupRates {
  std::string name;
  int num_groups = 1, num_ranks = 1;
  int num_machines = 1;                      // of the ranks of a group, at most
  double delay = 0;                          // seconds of an all-to-all of a few bytes
  double all_to_all = 0, all_gather = 0;     // bytes/s
  double reduce_scatter = 0, next_rank = 0;  // bytes/s; next_rank: to the next rank of a ring
};

struct NetworkBenchResult {
  int num_ranks = 1, ranks_per_machine = 1;
  const char* places = "machines";  // LinkTimes::places
  std::string device;               // display name
  std::vector<GroupRates> groups;
  NetworkRates rates;
  std::vector<std::string> slow;  // sentences
};

/// Returns the plan whose groups are measured. Throws UserError.
ParallelPlan plan_of(const NetworkBenchOptions& options, int num_ranks);

/// Collective. The result is the same on all ranks.
NetworkBenchResult run_network_bench(const NetworkBenchOptions& options, const Rendezvous& where,
                                     const BenchDevice& on);

/// Returns the table for a terminal.
std::string network_table(const NetworkBenchResult& result);
/// Returns the text of network.json, which the key network_rates takes.
std::string network_json(const NetworkBenchResult& result);

}  // namespace longspan
