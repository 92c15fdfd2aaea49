// Commands of a user. No torch.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>

namespace longspan {

struct UserCommand {
  std::string key;                                      // key of the command, for errors
  std::string command;                                  // for /bin/sh
  double seconds;                                       // time limit
  std::string timeout_key;                              // key of the time limit
  std::map<std::string, std::string> environment = {};  // in addition to this process's environment
  /// True: the command may leave processes, such as a server, that keep its streams open. False:
  /// the command lasts until its streams are closed, so that no output is lost.
  bool may_leave_processes = false;
};

/// Runs a command with `input` as its standard input. Returns its standard output; nullopt:
/// `stops`, which is called every 200 ms, returned true. Throws UserError if the command cannot be
/// started, returns another status than 0, or exceeds its time limit; its processes are then
/// killed. The message has the end of standard error.
std::optional<std::string> output_of(const UserCommand& command, const std::string& input,
                                     const std::function<bool()>& stops = {});

}  // namespace longspan
