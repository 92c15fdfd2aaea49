// Configurations and plans of programs in Python. No torch.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "longspan/cuda/device_choice.h"
#include "longspan/rendezvous/rendezvous.h"
#include "longspan/session/run_plan.h"

namespace longspan {

struct Config;

/// A configuration file, and overrides `key=value`.
struct GivenConfig {
  std::string file;
  std::vector<std::string> overrides;
};

/// load_config() with the values that the environment gives. Throws UserError.
Config run_config(const GivenConfig& given);
/// load_session_config(). Throws UserError.
Config session_config(const GivenConfig& given);

/// Returns rendezvous_from_environment(), with another port unless `port` is 0.
Rendezvous rendezvous_at(int64_t port);

/// The GPUs of this machine, and the threads of this process.
Machine machine_of_python();

/// Returns plan_run() for this process. Makes the rank's GPU, if any, the current one, with the
/// configuration's numerics. Throws UserError.
RunPlan plan_here(const Config& config, const Rendezvous& where);

}  // namespace longspan
