#include "cli/process/end_process.h"

#include <unistd.h>

#include <atomic>
#include <cstdio>

#include "longspan/liveness/unfinished.h"
#include "longspan/text/print.h"

namespace longspan {

void end_process_at_once(int status) {
  finish_before_the_end();
  _exit(status);
}

void claim_last_words() {
  static std::atomic_flag claimed;
  if (!claimed.test_and_set()) return;
  for (;;) pause();
}

void end_process_with_error(const std::string& message) {
  std::fflush(stdout);
  print_err("error: {}\n", message);
  end_process_at_once(1);
}

}  // namespace longspan
