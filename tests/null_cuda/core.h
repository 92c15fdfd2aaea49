// Shared parts of the stand-ins for CUDA's libraries: number of GPUs, allocated memory, and
// counters. Nothing here computes. GPU memory is a range of inaccessible addresses: copies to it
// are dropped, and copies from it give zeros, except for a few bytes (values.h).
//
// Environment:
//   NULL_CUDA_DEVICES     number of GPUs (1)
//   NULL_CUDA_CAPABILITY  90 (an H100) or 80 (an A100)
//   NULL_CUDA_MEMORY      MiB of each GPU (81920)
//   NULL_CUDA_MODULES     KIND or KIND:GPU, why the driver loads no code (on this GPU alone).
//                         `refused`: as if it were too old for NVRTC's; `full`: no memory;
//                         `broken`: an earlier kernel read an illegal address
//   NULL_CUDA_REFUSED     text in the names of torch's kernels that do not start
//   NULL_CUDA_MILLISECONDS
//                         numbers with commas: the times between two events, in turn (0.01)
//   NULL_CUDA_COUNTS      BYTES:LIST;LIST;..., the contents of an unknown message of BYTES bytes to
//                         the host: the numbers (int64) of the list of this rank, then zeros. One
//                         list is every rank's. A list is N,N,...
//   NULL_CUDA_REPORT      a folder in which each process keeps a JSON file with its counters
//   NULL_NCCL_MACHINE     ranks of a machine (all): bytes to ranks of other machines are counted
//   NULL_NCCL_MEMORY      MiB that a communicator takes at its first all-to-all or send (0)
//   NULL_NCCL_FAIL        RANK:NUMBER, a rank's collective that NCCL refuses
//   NULL_NCCL_BREAK       RANK:NUMBER, the same, but the network reports the error later
//   NULL_NCCL_HANG        RANK:NUMBER, the same, but the GPU hangs without an error
// RANK -1 means all ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace null_cuda {

struct Settings {
  int num_devices = 1;
  int capability = 90;
  int64_t memory = 0;  // bytes of each GPU
  int num_multiprocessors = 132;
  /// Why the driver loads no code: a CUresult, 0 if it loads it; on which GPU, -1: on all.
  int error_of_modules = 0, modules_of = -1;
  std::string refused_kernels;             // text in their names; empty: none
  std::vector<float> milliseconds{0.01F};  // between two events, in turn
  struct Counts {
    size_t bytes = 0;  // of the message; 0: none
    std::vector<int64_t> numbers = {};
  } counts = {};
};

const Settings& settings();

/// Kinds of counters; each counts by name.
enum class Counted {
  kLaunches,         // kernels, by name
  kWaits,            // waits of the host for a GPU, by function
  kBytes,            // copied bytes, by direction
  kCalls,            // library calls, by function
  kCollectives,      // by kind
  kCollectiveBytes,  // bytes that a rank passes to a collective or sends, by kind
  kCardBytes,        // bytes that a rank sends through its network card, by kind; Recv: receives
  kGemmFlops,        // floating point operations of gemms, by name
};

void count(Counted what, std::string_view name, int64_t amount = 1);
/// Counts a wait of the host. The report has the number of launches before each wait.
void count_wait(std::string_view name);

/// Notes that code is loaded on a GPU with so many taken bytes. The report has the last number.
void note_load(int64_t num_bytes);

/// From here on no GPU work ends: events never complete, and waits never return.
void hang();
bool hangs();

/// Writes the counters. Each wait also writes the counters, because a process may end abruptly.
void report();

/// Prints a line on stderr about an invalid call.
void complain(const std::string& text);

// Devices. Each thread has a current device.
int current_device();
bool choose_device(int device);

// Memory. Sizes are numbers of bytes. Addresses are integers.

/// Returns the address of new memory; 0 if the GPU has too little free memory.
uintptr_t allocate(int device, size_t size);
bool free_memory(uintptr_t address);
/// Returns the first of `size` addresses without memory.
uintptr_t reserve_addresses(size_t size, size_t alignment);
bool free_addresses(uintptr_t address, size_t size);
/// Returns the number of new memory without an address; 0 if the GPU has too little free memory.
uint64_t create_memory(int device, size_t size);
bool release_memory(uint64_t memory);
bool retain_memory(uintptr_t address, uint64_t* memory);
bool map_memory(uintptr_t address, size_t size, uint64_t memory);
bool unmap_memory(uintptr_t address, size_t size);
int64_t free_bytes(int device);

/// Returns the GPU that has memory at this address; -1 if none has.
int device_of(const void* address);
/// True if that GPU has memory at all of these addresses.
bool is_memory(const void* address, size_t size);
/// Sets the beginning and the size of the memory at an address.
bool extent_of(uintptr_t address, uintptr_t* begin, size_t* size);

/// Host memory registered with the GPUs.
void* allocate_pinned(size_t size);
bool free_pinned(void* address);
void register_pinned(void* address, size_t size);
bool unregister_pinned(void* address);
bool is_pinned(const void* address);

/// Copies between host and GPUs, by their addresses; false if a GPU has no memory there. Sets
/// `direction` to the name of the counter.
bool copy(void* to, const void* from, size_t size, const char** direction = nullptr);

}  // namespace null_cuda
