#include "cli/process/lost_gpus.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <cstdlib>
#include <exception>
#include <mutex>
#include <utility>

#include "cli/process/end_process.h"
#include "longspan/cuda/gpu_error.h"
#include "longspan/rendezvous/communication_error.h"
#include "longspan/text/print.h"

namespace longspan {
namespace {

std::terminate_handler others_of_lost_gpus = nullptr;

struct Telling {
  std::mutex mutex;
  std::function<std::string(const std::string& reason)> tell;
};

/// Never destroyed: threads may end the process during static destruction.
Telling& telling() {
  static auto* const only = new Telling;
  return *only;
}

/// If several groups lose their GPUs at once, several threads come here; one continues. Another
/// thread that knows the cause may print it until this thread has a message. Does not wait for
/// readers of this process's stdout.
[[noreturn]] void end_without_gpus(const std::exception& error) {
  const std::lock_guard lock(telling().mutex);
  const std::string reason = reason_in_all_lines(error);
  std::string message;
  try {
    if (telling().tell) message = telling().tell(reason);
  } catch (...) {  // NCCL's reason is printed in any case
  }
  if (message.empty()) message = lost_gpus_message(reason);
  claim_last_words();
  // As when the main thread meets the error (cli/main.cpp).
  const bool of_gpu = is_error_of_gpu(reason);
  print_err("{}: {}\n", of_gpu ? "internal error" : "error", message);
  end_process_at_once(of_gpu ? 2 : 1);
}

[[noreturn]] void lost_gpus_or_other() {
  if (const std::exception_ptr error = std::current_exception()) {
    try {
      std::rethrow_exception(error);
    } catch (const c10::DistBackendError& lost) {
      end_without_gpus(lost);
    } catch (...) {
    }
  }
  others_of_lost_gpus();
  std::abort();
}

}  // namespace

void end_with_lost_gpus() { others_of_lost_gpus = std::set_terminate(lost_gpus_or_other); }

void end_soon_with_lost_gpus() {
  setenv("TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC", "500", /*overwrite=*/0);
}

void tell_of_lost_gpus(std::function<std::string(const std::string& reason)> tell) {
  const std::lock_guard lock(telling().mutex);
  telling().tell = std::move(tell);
}

}  // namespace longspan
