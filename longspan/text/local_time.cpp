#include "longspan/text/local_time.h"

#include <fmt/format.h>

#include <chrono>
#include <ctime>
#include <nlohmann/json.hpp>

#include "longspan/base/user_error.h"
#include "longspan/text/chat_template.h"

namespace longspan {
namespace {

constexpr double kYear9999 = 2.5e11;  // in seconds since 1970

}  // namespace

LocalTime local_time_now() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return local_time_at(std::chrono::duration<double>(now).count());
}

LocalTime local_time_at(double seconds) {
  if (!(seconds >= 0 && seconds < kYear9999)) {
    throw UserError(fmt::format("{} seconds since 1970 are no time of a calendar", seconds));
  }
  const auto whole = static_cast<std::time_t>(seconds);
  const auto microseconds = static_cast<int>((seconds - static_cast<double>(whole)) * 1e6);
  std::tm local{};
  tzset();
  localtime_r(&whole, &local);
  return {fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:06}", local.tm_year + 1900,
                      local.tm_mon + 1, local.tm_mday, local.tm_hour, local.tm_min, local.tm_sec,
                      microseconds)};
}

LocalTime local_time_from(const std::string& text) {
  render_chat_template("", nlohmann::json{{"strftime_now", text}}.dump());  // parses it
  return {text};
}

}  // namespace longspan
