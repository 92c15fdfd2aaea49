// Errors in a program's use of the device.
#pragma once

#include <stdexcept>
#include <string>
#include <vector>

namespace longspan::testing::accelerator {

enum class Fault {
  kRace,        // two launches touch the same bytes, at least one writes, and nothing orders them
  kFreedInUse,  // memory may be reused while a stream still uses it
  kFreed,       // a launch uses freed memory
  kUninitialized,  // a launch reads memory that nothing has written
  kWrongDevice,    // tensors of several devices or of the host, or a kernel on another device
  kPinnedFreed,    // pinned memory is freed during a copy that its allocator does not know
  kHostTensor,     // a collective gets a host tensor
  kCollectives,    // the ranks of a group do not start the same collectives
  kNotContiguous,  // a collective gets a tensor that is not dense
  kHostWaits,      // the host waits more often than allowed for a piece of code
};

const char* name_of(Fault fault);

struct FaultError : std::runtime_error {
  FaultError(Fault what, const std::string& text)
      : std::runtime_error("simulated accelerator: " + text), fault(what) {}
  Fault fault;
};

/// Throws a FaultError.
[[noreturn]] void report(Fault fault, const std::string& text);

/// For code that must not throw, such as destructors: the next launch throws the error. Without
/// another launch, the end of the process prints the error and sets the status kFaultStatus.
void report_later(Fault fault, const std::string& text);
/// Throws an error from report_later().
void throw_reported();

/// Exit status of a process after a host access to device memory, and of a process that ends with a
/// reported error that was not thrown.
inline constexpr int kFaultStatus = 86;

}  // namespace longspan::testing::accelerator
