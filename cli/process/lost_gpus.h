// Ends a process whose GPU has lost its peers.
//
// NCCL reports most errors after the host has continued. A thread of torch (the watchdog of a
// process group) detects these errors and throws. The exception ends the process, because later GPU
// results are invalid. No torch.
#pragma once

#include <functional>
#include <string>

namespace longspan {

/// From now on, an NCCL exception that escapes from a thread ends the process with one line on
/// stderr and status 1, or status 2 if the GPU itself has failed. Other exceptions end the process
/// as before (std::terminate).
void end_with_lost_gpus();

/// By default, the watchdog waits a minute before it ends the process, to dump operations in
/// progress. This function shortens the wait for process groups that are made after the call: to
/// two seconds, or to four times TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC if this variable is set.
void end_soon_with_lost_gpus();

/// Sets a callback that is called before NCCL or a failed GPU ends the process. The callback gets
/// NCCL's reason and returns the message to print. An empty function removes the callback, and
/// waits for a call in progress.
void tell_of_lost_gpus(std::function<std::string(const std::string& reason)> tell);

}  // namespace longspan
