// The plan of a run whose program is in Python. No torch.
#pragma once

#include <cstdint>

#include "longspan/cuda/device_choice.h"
#include "longspan/rendezvous/rendezvous.h"
#include "longspan/session/run_plan.h"

namespace longspan {

struct Config;

/// Returns rendezvous_from_environment(), with another port unless `port` is 0.
Rendezvous rendezvous_at(int64_t port);

/// Whether this process stands for a machine of a job whose processes are still to be started
/// (cli/process/node_environment.h), although RANK and WORLD_SIZE may be set.
bool starts_processes();

/// The GPUs of this machine, and the threads of this process.
Machine machine_of_python();

/// Returns plan_run() for this process. Makes the rank's GPU, if any, the current one, with the
/// configuration's numerics. Throws UserError.
RunPlan plan_here(const Config& config, const Rendezvous& where);

}  // namespace longspan
