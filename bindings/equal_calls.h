// Calls that all ranks of a process group must make alike: a mistake of one rank becomes an error
// on all ranks, instead of a wait for a rank that has left the call.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace longspan {

/// Compares a call between the ranks of a process group. `check` checks the arguments. `describe`
/// returns a text that is the same on ranks whose exchanges fit together; it is not called where
/// nothing is compared. Throws UserError on every rank if a function of one rank throws UserError,
/// or if the texts differ. A small exchange on every call. Collective. Throws CommunicationError.
///
/// On CUDA devices, where the exchange would stop the host, only texts that were not compared
/// before are compared. A rank whose function throws there raises alone, and if only some ranks
/// see a text as new, the ranks make different collectives: the others wait for the timeout.
void require_equal_calls(const std::string& process_group, bool cuda, int64_t timeout_seconds,
                         const std::function<void()>& check,
                         const std::function<std::string()>& describe);

/// Whether the ranks have compared this thread's calls by other means. Calls are then checked, and
/// not compared. Returns the value before.
bool set_calls_compared(bool compared);

/// Forgets the texts that a process group has compared. All ranks call it at the same place.
void forget_calls(const std::string& process_group);

}  // namespace longspan
