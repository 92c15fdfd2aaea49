// What the stand-ins of CUDA's libraries share: how many GPUs there are, what of their memory is
// taken, and what was counted. Nothing here computes. Memory of a GPU is a range of addresses that
// nobody may touch: what is copied there is dropped, and what comes from there is zero, but for a
// few bytes (values.h).
//
// Of the environment:
//   NULL_CUDA_DEVICES     how many GPUs (1)
//   NULL_CUDA_CAPABILITY  90 (an H100) or 80 (an A100)
//   NULL_CUDA_MEMORY      MiB of each GPU (81920)
//   NULL_CUDA_MODULES     `refused`: the driver loads no code, as where it is too old for NVRTC's
//   NULL_CUDA_COUNTS      BYTES:COUNT:TIMES, what comes to the host in a message of so many bytes
//                         of which nothing is known: a count (int64), so many times, and zeros
//   NULL_CUDA_REPORT      a folder, where each process keeps a file of JSON with its counts
//   NULL_NCCL_FAIL        RANK:NUMBER, the collective of a rank that NCCL refuses
//   NULL_NCCL_BREAK       RANK:NUMBER, the same, but its error comes later, from the network
//   NULL_NCCL_HANG        the same, but its GPU never gets past it, nor does anything tell
// RANK -1 is all ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace null_cuda {

struct Settings {
  int num_devices = 1;
  int capability = 90;
  int64_t memory = 0;  // bytes of each GPU
  int num_multiprocessors = 132;
  bool refuses_modules = false;
  struct Counts {
    size_t bytes = 0;  // of the message; 0: there is none
    int64_t count = 0, times = 0;
  } counts = {};
};

const Settings& settings();

/// What is counted, each by names.
enum class Counted {
  kLaunches,         // kernels, by their names
  kWaits,            // waits of the host for a GPU, by the function
  kBytes,            // copied, by direction
  kCalls,            // of libraries, by the function
  kCollectives,      // by kind
  kCollectiveBytes,  // that a rank gives to a collective or sends, by kind
};

void count(Counted what, std::string_view name, int64_t amount = 1);
/// A wait of the host. The report has the launches before each.
void count_wait(std::string_view name);

/// From now on nothing ends that a GPU has begun: events do not come, and who waits, waits forever.
void hang();
bool hangs();

/// Writes the counts until now. Each wait does it, too: a process may end without a word.
void report();

/// A line on stderr, of what is wrong with a call.
void complain(const std::string& text);

// Devices. The current one is a thread's own.
int current_device();
bool choose_device(int device);

// Memory. Sizes are in bytes, addresses numbers.

/// Memory with an address; 0 where the GPU has not as much left.
uintptr_t allocate(int device, size_t size);
bool free_memory(uintptr_t address);
/// Addresses without memory.
uintptr_t reserve_addresses(size_t size, size_t alignment);
bool free_addresses(uintptr_t address, size_t size);
/// Memory without an address, by its number; 0 where the GPU has not as much left.
uint64_t create_memory(int device, size_t size);
bool release_memory(uint64_t memory);
bool retain_memory(uintptr_t address, uint64_t* memory);
bool map_memory(uintptr_t address, size_t size, uint64_t memory);
bool unmap_memory(uintptr_t address, size_t size);
int64_t free_bytes(int device);

/// The GPU that has memory at this address; -1 where none has.
int device_of(const void* address);
/// Has that GPU memory at all of these addresses?
bool is_memory(const void* address, size_t size);
/// Where the memory at an address begins and how large it is.
bool extent_of(uintptr_t address, uintptr_t* begin, size_t* size);

/// Host memory that GPUs know.
void* allocate_pinned(size_t size);
bool free_pinned(void* address);
void register_pinned(void* address, size_t size);
bool unregister_pinned(void* address);
bool is_pinned(const void* address);

/// Copies between host and GPUs, by their addresses; false where a GPU has no memory there.
/// `direction` becomes the name of what was counted.
bool copy(void* to, const void* from, size_t size, const char** direction = nullptr);

}  // namespace null_cuda
