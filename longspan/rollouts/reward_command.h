// A command that judges answers. No torch.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace longspan {

/// Runs a shell command with `input` as its standard input. Returns its standard output; nullopt:
/// `stops`, which is called every 200 ms, returned true. Throws UserError if the command cannot be
/// started, returns another status than 0, or runs longer than `timeout` seconds; its processes are
/// then killed. The message has the end of standard error.
std::optional<std::string> output_of(const std::string& command, const std::string& input,
                                     int64_t timeout, const std::function<bool()>& stops = {});

}  // namespace longspan
