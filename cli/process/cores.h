// The cores that this process may use. No torch.
#pragma once

#include <string>

#include "longspan/rendezvous/rendezvous.h"

namespace longspan {

/// The cores of a process.
struct Cores {
  int of_mask = 0;     // in its affinity mask
  double limit = 0;    // processor time that its control groups allow, in cores; 0: no limit
  bool bound = false;  // a launcher has bound the process to some of its own cores (mpirun, srun)

  /// Returns the number of cores that the process may use at once, at least 1.
  int usable() const;
};

Cores cores_of_process();

/// Returns cores_of_process().usable().
int num_cores();

/// Returns the processor time that the control groups of this process allow, in cores; 0 without a
/// limit. `root` replaces / in tests.
double limit_of_cores(const std::string& root = "");

/// Returns the number of threads of this process among those that a launcher has started here: the
/// launcher's number (Rendezvous::threads); the cores to which the process is bound; otherwise an
/// equal share of the mask. The processes divide the limit of their control group.
int threads_of_worker(const Rendezvous& where, const Cores& cores);

}  // namespace longspan
