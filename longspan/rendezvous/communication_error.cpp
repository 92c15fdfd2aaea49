#include "longspan/rendezvous/communication_error.h"

#include <fmt/format.h>

#include <algorithm>
#include <sstream>
#include <string_view>

#include "longspan/cuda/gpu_error.h"

namespace longspan {

namespace {

constexpr std::string_view kOfWatchdog = "terminated with exception: ";

std::string without_end(std::string reason) {
  while (reason.ends_with(".") || reason.ends_with(" ")) reason.pop_back();
  return reason;
}

}  // namespace

std::string lost_gpus_message(const std::string& reason) {
  if (is_error_of_gpu(reason)) {
    return fmt::format(
        "the GPU of this rank has failed: {}. With CUDA_LAUNCH_BLOCKING=1 in the environment the "
        "operation that fails says so itself.",
        reason);
  }
  return fmt::format(
      "communication between GPUs failed: {}. Another rank has ended, or the network or a GPU has "
      "failed, or a rank took longer than ddp_timeout. {}",
      reason, kNcclSaysMore);
}

std::string brief_reason(const std::exception& error) {
  std::string reason = error.what();
  for (const char* tail : {"\n", ". This is typically", "Exception raised from"}) {
    reason.resize(std::min(reason.size(), reason.find(tail)));
  }
  // Gloo's messages begin with "[file:line] ".
  if (reason.starts_with("[")) {
    const size_t end = reason.find("] ");
    if (end != std::string::npos) reason.erase(0, end + 2);
  }
  return without_end(reason);
}

std::string reason_in_all_lines(const std::exception& error) {
  std::string what = error.what();
  what.resize(std::min(what.size(), what.find("Exception raised from")));
  if (const size_t quote = what.find(kOfWatchdog); quote != std::string::npos) {
    what.erase(0, quote + kOfWatchdog.size());
  }
  // A watchdog's timeout begins with its group: "[PG ...] ".
  if (const size_t end = what.find("] "); what.starts_with("[PG ") && end != std::string::npos) {
    what.erase(0, end + 2);
  }
  std::istringstream lines(what);
  std::string line, reason;
  while (std::getline(lines, line)) {
    line = without_end(line);
    if (line.empty()) continue;
    if (!reason.empty()) reason += reason.ends_with(":") ? " " : "; ";
    reason += line;
  }
  return reason;
}

}  // namespace longspan
