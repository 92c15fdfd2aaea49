// Measured rates of the links between ranks, for the cost model. No torch.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace longspan {

/// Rates of a rank while all ranks send. 0: not measured.
struct NetworkRates {
  double inside_bytes = 0, between_bytes = 0;  // bytes/s within a machine, and to another machine
  double inside_delay = 0, between_delay = 0;  // seconds per message
  int ranks_per_machine = 0;                   // of the measurement
  bool gpus = false;                           // measured between GPUs

  bool operator==(const NetworkRates&) const = default;
};

/// Reads the rates of a file of `longspan bench network` (key network_rates), for a run on GPUs or
/// on CPUs, on one machine or several. Throws UserError, also for rates of other links than those
/// of the run.
NetworkRates read_network_rates(const std::string& path, bool gpus, bool several_machines);

/// Returns the object "rates" of that file.
nlohmann::ordered_json json_of(const NetworkRates& rates);

}  // namespace longspan
