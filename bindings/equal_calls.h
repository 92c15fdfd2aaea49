// Calls that all ranks of a process group must make alike: a mistake of one rank becomes an error
// on all ranks, instead of a wait for a rank that has left the call.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace longspan {

/// Compares a call between the ranks of a process group. `describe` checks the arguments, and
/// returns a text that is the same on ranks whose exchanges fit together. Throws UserError on every
/// rank if a rank's `describe` throws UserError, or if the texts differ. A small exchange on every
/// call; on CUDA devices, where it would stop the host, only for texts that were not compared
/// before. Collective. Throws CommunicationError.
void require_equal_calls(const std::string& process_group, bool cuda, int64_t timeout_seconds,
                         const std::function<std::string()>& describe);

/// Whether the ranks have compared this thread's calls by other means. Calls are then checked, and
/// not compared. Returns the value before.
bool set_calls_compared(bool compared);

}  // namespace longspan
