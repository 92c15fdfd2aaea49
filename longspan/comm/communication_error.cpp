#include "longspan/comm/communication_error.h"

#include <algorithm>

namespace longspan {

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
  while (reason.ends_with(".") || reason.ends_with(" ")) reason.pop_back();
  return reason;
}

}  // namespace longspan
