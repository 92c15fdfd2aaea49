#include "longspan/files/lock_owner.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <map>
#include <sstream>

namespace longspan {

LockOwner new_lock_owner() {
  return {own_process(), fmt::format("{:%Y-%m-%d %H:%M:%S} UTC", fmt::gmtime(std::time(nullptr)))};
}

std::string text_of(const LockOwner& owner) {
  const ProcessIdentity& process = owner.process;
  return fmt::format(
      "A run of longspan writes into this folder. This file goes when it ends.\n"
      "host: {}\nprocess: {}\nsince: {}\nstarted: {}\nmachine: {}\n",
      process.host, process.process, owner.since, process.started, process.machine);
}

std::optional<LockOwner> lock_owner_from(const std::string& text) {
  std::map<std::string, std::string> values;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const size_t colon = line.find(": ");
    if (colon == std::string::npos) continue;
    std::string value = line.substr(colon + 2);
    // Any program may have written the file, and the value is shown to the user.
    std::ranges::replace_if(value, [](char c) { return c < ' ' || c > '~'; }, '?');
    values.emplace(line.substr(0, colon), value);
  }
  LockOwner owner{{values["host"], values["machine"], 0, 0}, values["since"]};
  std::istringstream numbers(values["process"] + " " + values["started"]);
  numbers >> owner.process.process >> owner.process.started;
  if (numbers.fail() || owner.process.host.empty()) return std::nullopt;
  return owner;
}

}  // namespace longspan
