// How many threads a worker computes with.
#pragma once

#include <string>

#include "longspan/plan/device_choice.h"

namespace longspan {

/// Shares the cores out among the workers of a machine, unless OMP_NUM_THREADS is set.
void choose_threads();

/// "CUDA", "CPU with 4 threads each (no GPU was found)".
std::string device_text(const DeviceChoice& device);

}  // namespace longspan
