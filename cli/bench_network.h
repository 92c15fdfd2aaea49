// `longspan bench network`: measures groups of processes and the links between processes.
#pragma once

#include "cli/commands.h"

namespace longspan {

extern const char* const kBenchNetworkHelp;

/// Returns the exit status. Throws UserError.
int run_bench_network(const Arguments& arguments);

}  // namespace longspan
