// Errors on all ranks at once.
#pragma once

#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "longspan/comm/group.h"
#include "longspan/comm/notices.h"
#include "longspan/config/user_error.h"

namespace longspan {

/// Thrown on ranks other than 0 when some rank failed: rank 0 says it, so that it is said once.
class FailedElsewhere : public std::runtime_error {
 public:
  explicit FailedElsewhere(const std::string& what, bool full = false)
      : std::runtime_error(what), disk_full(full) {}
  bool disk_full;
};

/// What rank 0 throws when some rank failed, with the message to print. Every rank knows of the
/// failure.
class AgreedError : public UserError {
 public:
  explicit AgreedError(const std::string& what, bool full = false)
      : UserError(what), disk_full(full) {}
  bool disk_full;
};

/// Whether all_or_none threw `error` because disks were full, and for nothing else. The same on all
/// ranks.
bool is_disk_full(const std::exception& error);
/// Whether all ranks have agreed on this error. With one rank, every UserError counts.
bool is_agreed(const Group& world, const std::exception& error);

/// Describes the failure for the user. Where memory ran out, names the keys that save some.
std::string describe_failure(const std::exception& error);

/// Runs `phase` on every rank and then asks all how it went. When any failed, all fail: rank 0
/// throws AgreedError with the first failing rank's message, the others FailedElsewhere with it.
/// With one rank, its own exception passes through. Collective: every rank must call it.
void all_or_none(const Group& world, const std::function<void()>& phase);

/// The same for phases that may take one rank longer than a collective waits for it: reading and
/// writing whole models.
void all_or_none_patiently(const Group& world, Notices& notices,
                           const std::function<void()>& phase);

/// Each rank's answer to a question of yes or no, in rank order. Collective.
std::vector<bool> gather_answers(const Group& world, bool mine);

/// Runs `phase` where the ranks cannot communicate yet. Most mistakes happen on all ranks. So on a
/// UserError the ranks other than 0 wait a little: rank 0 prints the message, and the launcher
/// usually ends the others before they print it again, with their rank.
void rank_0_first(int rank, const std::function<void()>& phase);

}  // namespace longspan
