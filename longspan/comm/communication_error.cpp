#include "longspan/comm/communication_error.h"

#include <algorithm>
#include <sstream>

namespace longspan {

namespace {

std::string without_end(std::string reason) {
  while (reason.ends_with(".") || reason.ends_with(" ")) reason.pop_back();
  return reason;
}

}  // namespace

std::string brief_reason(const std::exception& error) {
  std::string reason = error.what();
  for (const char* tail : {"\n", ". This is typically", "Exception raised from"}) {
    reason.resize(std::min(reason.size(), reason.find(tail)));
  }
  // Gloo begins with "[file:line] ".
  if (reason.starts_with("[")) {
    const size_t end = reason.find("] ");
    if (end != std::string::npos) reason.erase(0, end + 2);
  }
  return without_end(reason);
}

std::string reason_in_all_lines(const std::exception& error) {
  const std::string what = error.what();
  std::istringstream lines(what.substr(0, what.find("Exception raised from")));
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
