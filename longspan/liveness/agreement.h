// Turns the error of one rank into an error on all ranks.
#pragma once

#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "longspan/base/user_error.h"
#include "longspan/comm/group.h"
#include "longspan/liveness/notices.h"

namespace longspan {

/// Thrown on ranks other than 0 when any rank failed. Only rank 0 prints the message.
class FailedElsewhere : public std::runtime_error {
 public:
  explicit FailedElsewhere(const std::string& what, bool full = false)
      : std::runtime_error(what), disk_full(full) {}
  bool disk_full;
};

/// Thrown on rank 0 when any rank failed, with the message to print. Every other rank knows of the
/// failure too.
class AgreedError : public UserError {
 public:
  explicit AgreedError(const std::string& what, bool full = false)
      : UserError(what), disk_full(full) {}
  bool disk_full;
};

/// True if `error` came from all_or_none and full disks were the only cause. The result is the same
/// on all ranks.
bool is_disk_full(const std::exception& error);
/// True if all ranks have agreed on this error. With one rank, true for every UserError.
bool is_agreed(const Group& world, const std::exception& error);

/// Describes the failure for the user. When memory ran out, lists the keys that save memory.
std::string describe_failure(const std::exception& error);

/// Runs `phase` on every rank, then exchanges the results. When any rank failed, all fail: rank 0
/// throws AgreedError with the message of the first failing rank, the others throw FailedElsewhere
/// with the same message. With one rank, rethrows the rank's exception. Collective: every rank must
/// call this function.
void all_or_none(const Group& world, const std::function<void()>& phase);

/// Like all_or_none, for phases in which one rank may take longer than the timeout of a collective:
/// reading and writing whole models.
void all_or_none_patiently(const Group& world, Notices& notices,
                           const std::function<void()>& phase);

/// Returns each rank's answer to a yes-or-no question, in rank order. Collective.
std::vector<bool> gather_answers(const Group& world, bool mine);

/// Runs `phase` before the ranks can communicate. Most user errors occur on all ranks, so after a
/// UserError the ranks other than 0 wait two seconds: rank 0 prints the message, and the launcher
/// usually ends the others before they print the message again. The message of a rank other than 0
/// names the rank.
void rank_0_first(int rank, const std::function<void()>& phase);

}  // namespace longspan
