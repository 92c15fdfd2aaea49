// The time that strftime_now of chat templates formats. No torch.
#pragma once

#include <string>

namespace longspan {

/// Local date and time with microseconds, as Python's datetime.now().isoformat() writes them:
/// "2026-11-26T00:41:17.250000".
struct LocalTime {
  std::string text;
};

/// Returns the present time, in the time zone of this machine.
LocalTime local_time_now();
/// Converts seconds since 1970 (UTC). Throws UserError outside the calendar.
LocalTime local_time_at(double seconds);
/// Parses a saved text. Throws UserError if the text is invalid.
LocalTime local_time_from(const std::string& text);

}  // namespace longspan
