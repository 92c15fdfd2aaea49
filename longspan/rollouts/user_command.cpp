#include "longspan/rollouts/user_command.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "longspan/base/user_error.h"
#include "longspan/rollouts/child_process.h"
#include "longspan/text/shown.h"

namespace longspan {
namespace {

constexpr size_t kMostOutput = size_t{1} << 30;

[[noreturn]] void fail(const UserCommand& command, const std::string& problem) {
  throw UserError(fmt::format("{} {}: {}", command.key, shortened(command.command, 120), problem));
}

}  // namespace

std::optional<std::string> output_of(const UserCommand& command, const std::string& input,
                                     const std::function<bool()>& stops) {
  ChildProcess child(command.command, command.environment);
  child.write(input);
  child.end_input();
  const auto until =
      std::chrono::steady_clock::now() + std::chrono::duration<double>(command.seconds);
  const auto lasts = [&] {
    return !child.has_ended() && !(command.may_leave_processes && child.has_exited());
  };
  while (lasts()) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        until - std::chrono::steady_clock::now());
    if (left.count() <= 0) {
      fail(command, fmt::format("has not ended after {} s ({}); it was killed", command.seconds,
                                command.timeout_key));
    }
    if (stops && stops()) return std::nullopt;
    child.exchange(std::min(left, std::chrono::milliseconds(200)));
    if (child.output().size() > kMostOutput) fail(command, "wrote more than 1 GiB");
  }
  if (!child.has_ended()) child.exchange(std::chrono::milliseconds(0));
  const std::string status = child.status();
  if (status.empty()) return std::move(child.output());
  fail(command, status + (child.errors().empty() ? "" : ":\n" + child.errors()));
}

}  // namespace longspan
