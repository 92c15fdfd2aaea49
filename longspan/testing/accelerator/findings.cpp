#include "longspan/testing/accelerator/findings.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <deque>
#include <mutex>

namespace longspan::testing::accelerator {
namespace {

struct Reported {
  std::mutex mutex;
  std::deque<FaultError> errors;
};

// Never destroyed: tensors with static lifetime may be freed after it.
Reported& reported() {
  static auto* const reported = [] {
    std::atexit([] {
      Reported& all = accelerator::reported();
      const std::lock_guard lock(all.mutex);
      if (all.errors.empty()) return;
      std::fprintf(stderr, "error: %s\n", all.errors.front().what());
      std::fflush(nullptr);
      _exit(kFaultStatus);
    });
    return new Reported;
  }();
  return *reported;
}

}  // namespace

const char* name_of(Fault fault) {
  switch (fault) {
    case Fault::kRace:
      return "race";
    case Fault::kFreedInUse:
      return "freed in use";
    case Fault::kFreed:
      return "used after it was freed";
    case Fault::kUninitialized:
      return "uninitialized";
    case Fault::kWrongDevice:
      return "wrong device";
    case Fault::kPinnedFreed:
      return "pinned memory freed in use";
    case Fault::kHostTensor:
      return "host tensor in a collective";
    case Fault::kCollectives:
      return "collectives in another order";
    case Fault::kNotContiguous:
      return "collective of a tensor that is not dense";
    case Fault::kHostWaits:
      return "the host waits too often";
  }
  std::abort();
}

void report(Fault fault, const std::string& text) {
  throw FaultError(fault, std::string(name_of(fault)) + ": " + text);
}

void report_later(Fault fault, const std::string& text) {
  Reported& all = reported();
  const std::lock_guard lock(all.mutex);
  all.errors.emplace_back(fault, std::string(name_of(fault)) + ": " + text);
}

void throw_reported() {
  Reported& all = reported();
  const std::lock_guard lock(all.mutex);
  if (all.errors.empty()) return;
  const FaultError first = all.errors.front();
  all.errors.clear();
  throw first;
}

}  // namespace longspan::testing::accelerator
