// Limits the host's waits for a device in a piece of code.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <functional>
#include <string>

#include "longspan/testing/accelerator/accelerator.h"

namespace longspan::testing::accelerator {

/// Throws FaultError, with the causes, if the host waits more than `most` times in `work`. Does not
/// reset the counters.
inline void waits_at_most(int64_t most, const std::function<void()>& work) {
  const Counters before = Machine::get().counters();
  work();
  const Counters after = Machine::get().counters();
  const int64_t waits = after.host_syncs - before.host_syncs;
  if (waits <= most) return;
  std::string what;
  for (const auto& [name, count] : after.host_syncs_of) {
    const auto earlier = before.host_syncs_of.find(name);
    const int64_t more = count - (earlier == before.host_syncs_of.end() ? 0 : earlier->second);
    if (more > 0) what += fmt::format("{}{} for {}", what.empty() ? "" : ", ", more, name);
  }
  report(Fault::kHostWaits, fmt::format("{} times ({}), which may be {}", waits, what, most));
}

}  // namespace longspan::testing::accelerator
