#include "longspan/liveness/lost_store.h"

#include <fmt/format.h>

#include "longspan/rendezvous/endpoint.h"

namespace longspan {

std::string why_store_is_lost(const Rendezvous& where, const std::optional<Beat>& head,
                              const std::string& own_machine, bool refused) {
  const std::string address = endpoint_text(where.master_address, where.master_port);
  if (head && head->ending == Beat::Ending::kFailed) return blame(0, head, head, own_machine);
  if (head && !where.launcher_hosts_store) {
    const ProcessState state = state_of_process(*head, own_machine);
    if (head->ending == Beat::Ending::kAsks || head->ending == Beat::Ending::kLost) {
      return fmt::format("Rank 0 (host {}, process {}) has lost a rank too, in {}, and says which.",
                         head->host, head->process, head->doing);
    }
    if (state == ProcessState::kGone || state == ProcessState::kStopped) {
      return blame(0, head, head, own_machine);
    }
  }
  if (refused && where.launcher_hosts_store) {
    return fmt::format("The launcher, which served the run's key-value store at {}, has ended.",
                       address);
  }
  const std::string who =
      head ? fmt::format("Rank 0 (host {}, process {})", head->host, head->process) : "Rank 0";
  const std::string last =
      head ? fmt::format(" The last sign of life of rank 0 was in {}.", head->doing) : "";
  return fmt::format(
      "{}, which serves the run's key-value store at {}, does not answer: it has ended or hangs, "
      "or its machine, or the network to it.{}",
      where.launcher_hosts_store ? "The launcher of " + who : who, address, last);
}

}  // namespace longspan
