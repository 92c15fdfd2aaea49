// What is wrong with how a program uses the device.
#pragma once

#include <stdexcept>
#include <string>
#include <vector>

namespace longspan::testing::accelerator {

enum class Fault {
  kRace,           // two launches touch the same bytes, one writes, and nothing orders them
  kFreedInUse,     // memory may be given to others while a stream still uses it
  kFreed,          // a launch uses memory that was freed before
  kUninitialized,  // a launch reads what nothing has written
  kWrongDevice,    // tensors of several devices, or of the host, or a kernel on another device
  kPinnedFreed,    // pinned memory is freed while a copy that does not know it is under way
  kHostTensor,     // a collective is given a tensor of the host
  kCollectives,    // the ranks of a group do not start the same collectives
  kNotContiguous,  // a collective is given a tensor that is not dense
  kHostWaits,      // the host waits more often than a piece of code is known to
};

const char* name_of(Fault fault);

struct FaultError : std::runtime_error {
  FaultError(Fault what, const std::string& text)
      : std::runtime_error("simulated accelerator: " + text), fault(what) {}
  Fault fault;
};

/// Throws a FaultError.
[[noreturn]] void report(Fault fault, const std::string& text);

/// For where nothing can be thrown, as in a destructor: the next launch throws it, or the end of
/// the process prints it and makes its status kFaultStatus.
void report_later(Fault fault, const std::string& text);
/// Throws what was reported so.
void throw_reported();

/// The exit status of a process that the host's own access to memory of the device has ended, or
/// that ends with a fault that nothing has thrown.
inline constexpr int kFaultStatus = 86;

}  // namespace longspan::testing::accelerator
