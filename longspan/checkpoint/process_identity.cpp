#include "longspan/checkpoint/process_identity.h"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <limits>
#include <sstream>

#include "longspan/comm/beat.h"

namespace longspan {
namespace {

struct Stat {
  char state = '?';
  int64_t started = 0;
};

/// Reads /proc; the result is unknown where it cannot be read.
Stat stat_of(int64_t process) {
  std::ifstream file(fmt::format("/proc/{}/stat", process));
  std::string text;
  std::getline(file, text);
  // The name, in parentheses, may hold anything.
  const size_t name_ends = text.rfind(") ");
  if (name_ends == std::string::npos) return {};
  std::istringstream words(text.substr(name_ends + 2));
  Stat stat;
  words >> stat.state;
  constexpr int kBetween = 18;  // fields after the state, up to the start time
  std::string skipped;
  for (int i = 0; i < kBetween; ++i) words >> skipped;
  if (!(words >> stat.started)) stat.started = 0;
  return stat;
}

}  // namespace

ProcessIdentity own_process() {
  static const std::string host = own_host();
  const int64_t process = ::getpid();
  // Read anew at each call: it may be unknown for a moment, for want of a descriptor.
  return {host, own_machine(), process, stat_of(process).started};
}

bool is_here(const ProcessIdentity& process) {
  return !process.machine.empty() && process.machine == own_machine();
}

bool is_gone(const ProcessIdentity& process) {
  if (!is_here(process)) return false;
  if (process.process <= 0 || process.process > std::numeric_limits<pid_t>::max()) return false;
  if (::kill(static_cast<pid_t>(process.process), 0) != 0 && errno == ESRCH) return true;
  const Stat stat = stat_of(process.process);
  if (stat.state == 'Z' || stat.state == 'X') return true;
  return stat.started != 0 && process.started != 0 && stat.started != process.started;
}

}  // namespace longspan
