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

/// The GPUs of this machine, and the threads of this process.
Machine machine_of_python();

/// Returns plan_run() for this process. Makes the rank's GPU, if any, the current one, with the
/// configuration's numerics. Throws UserError.
RunPlan plan_here(const Config& config, const Rendezvous& where);

}  // namespace longspan
