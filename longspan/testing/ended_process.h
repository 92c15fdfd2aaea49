// Runs code that ends its process, in a child process.
#pragma once

#include <functional>
#include <string>

namespace longspan {

struct EndedProcess {
  int status = 0;    // of waitpid
  std::string text;  // on stderr
};

/// Runs `run` in a child that does not catch SIGABRT. If `run` returns, the child ends with status
/// 0.
EndedProcess ended_process(const std::function<void()>& run);

}  // namespace longspan
