#include "longspan/files/process_identity.h"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>

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

std::string own_host() {
  char name[256] = "";
  gethostname(name, sizeof(name) - 1);
  return name;
}

std::string own_machine() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string boot;
  std::getline(file, boot);
  std::error_code error;
  const std::string processes = std::filesystem::read_symlink("/proc/self/ns/pid", error).string();
  // Both parts are needed: one alone may be equal on another machine.
  return boot.empty() || processes.empty() ? "" : boot + " " + processes;
}

ProcessIdentity own_process() {
  static const std::string host = own_host();
  const int64_t process = ::getpid();
  // Read again in each call, because a lack of descriptors may hide the value for a moment.
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
