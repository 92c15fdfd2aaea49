// Callbacks of code that waits for a server. No torch.
#pragma once

#include <functional>
#include <string>

namespace longspan {

/// Both functions are called on the thread that waits.
struct Waiting {
  std::function<bool()> stops;                       // true: give up
  std::function<void(const std::string& line)> say;  // to the user
};

}  // namespace longspan
