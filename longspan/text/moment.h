// The moment that strftime_now of chat templates writes. No torch.
#pragma once

#include <string>

namespace longspan {

/// Date and time of a clock in local time, as Python's datetime.now().isoformat() writes them, with
/// microseconds: "2026-11-26T00:41:17.250000".
struct Moment {
  std::string text;
};

/// Now, by the clock and the time zone of this machine.
Moment this_moment();
/// A time of such a clock, in seconds since 1970 (UTC). Throws UserError where no calendar has it.
Moment moment_at(double seconds);
/// A moment that was written down. Throws UserError where the text is none.
Moment moment_from(const std::string& text);

}  // namespace longspan
