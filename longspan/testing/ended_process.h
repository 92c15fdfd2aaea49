// A process of a test's own, which ends as what is tested ends processes.
#pragma once

#include <functional>
#include <string>

namespace longspan {

struct EndedProcess {
  int status = 0;    // of waitpid
  std::string text;  // on stderr
};

/// Runs this in a child, in which SIGABRT is not caught. A child that comes to the end of `run`
/// ends with status 0.
EndedProcess ended_process(const std::function<void()>& run);

}  // namespace longspan
