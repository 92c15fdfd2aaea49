#include "cli/process/threads_without_memory.h"

#include <unistd.h>

#include <cstdlib>
#include <exception>
#include <new>
#include <string_view>
#include <system_error>

#include "longspan/memory/out_of_memory.h"
#include "longspan/text/print.h"

namespace longspan {
namespace {

std::terminate_handler others = nullptr;

/// Allocates no memory.
[[noreturn]] void end_without_memory() {
  constexpr std::string_view kText =
      "error: out of memory: the system gives this process no more, not even for its own threads. "
      "Start fewer processes on this machine, or raise the limits of memory and threads (ulimit "
      "-v, "
      "ulimit -u, the container's).\n";
  print_last_words(kText);
  _exit(1);
}

[[noreturn]] void terminated() {
  if (const std::exception_ptr error = std::current_exception()) {
    try {
      std::rethrow_exception(error);
    } catch (const std::bad_alloc&) {
      end_without_memory();
    } catch (const std::system_error& system) {
      if (is_out_of_memory(system)) end_without_memory();
    } catch (...) {
    }
  }
  others();
  std::abort();
}

}  // namespace

void end_threads_without_memory() { others = std::set_terminate(terminated); }

}  // namespace longspan
