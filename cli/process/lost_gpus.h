// The end of a process whose GPU has lost others.
//
// NCCL reports most errors when the host has gone on. A thread of torch's (the watchdog of a
// process group) finds them, and leaves itself by an exception, which ends the process: what GPUs
// compute behind such an error is worth nothing. No torch.
#pragma once

#include <functional>
#include <string>

namespace longspan {

/// From now on, an error of NCCL that leaves a thread ends the process with one line on stderr and
/// status 1. Others end it as before (std::terminate).
void end_with_lost_gpus();

/// The watchdog waits a minute before it ends the process, for dumps of what was under way. From
/// here on, for process groups that are made later, it waits two seconds, unless the environment
/// says how long (TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC, of which it waits four times as long).
void end_soon_with_lost_gpus();

/// Sets what is called then, with NCCL's reason; it returns what is said. An empty function unsets
/// it, and waits for a call that is under way.
void tell_of_lost_gpus(std::function<std::string(const std::string& reason)> tell);

}  // namespace longspan
