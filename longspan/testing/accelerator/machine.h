// The devices, their streams, and the host's view of both.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "longspan/testing/accelerator/clock.h"
#include "longspan/testing/accelerator/memory.h"

namespace longspan::testing::accelerator {

inline constexpr int kNumDevices = 8;

/// Events since the last restart, on all devices.
struct Counters {
  int64_t launches = 0;
  int64_t host_syncs = 0;  // waits of the host for a device
  int64_t bytes_to_device = 0, bytes_to_host = 0;
  std::map<std::string, int64_t, std::less<>> launches_of, host_syncs_of;  // by name
};

/// Requested bytes of a device's allocations: now, and the peak.
struct DeviceBytes {
  int64_t now = 0, most = 0;
};

/// Bytes that a launch reads or writes; `front`: their address.
struct Use {
  const void* front = nullptr;
  size_t size = 0;
  bool writes = false;
};

/// A launch: the `count`-th of its stream.
struct Launched {
  std::string_view name;
  int stream = 0;
  uint64_t count = 0;
};

/// The simulated machine. Launches compute at once in the calling thread, so results never depend
/// on timing; the clocks detect operations that a GPU might run in another order. All threads of
/// the host count as one: a wait by one thread counts for all threads. Thread-safe.
class Machine {
 public:
  static Machine& get();

  /// Returns a stream's number. `id` 0 is a device's default stream.
  int stream(int device, int64_t id);
  /// For example "stream 3 of device 0".
  std::string stream_text(int stream) const;

  /// `stream`: the stream of the allocation; ignored for kPinned. Throws FaultError if the stream
  /// may get memory that another stream still uses.
  Allocation& allocate(size_t size, int device, int stream);
  /// For deleters: does not throw.
  void free(Allocation& block) noexcept;
  void tell_of(const void* front, int stream);
  /// Returns null for memory that is neither of a device nor pinned.
  Allocation* find(const void* front) const;
  bool is_of_device(const void* front) const { return memory_.is_of_device(front); }
  bool is_pinned(const void* front) const;
  /// Returns the address for kernels; null if the address belongs to no allocation.
  char* back_of(const void* front) const;

  /// Starts a launch. Throws FaultError if nothing orders the launch after a launch that it depends
  /// on, if the launch reads unwritten memory, or if its memory was freed.
  Launched launch(std::string_view name, int stream, const std::vector<Use>& uses);
  /// Adds accesses of the launch to memory that was allocated for it.
  void also_uses(const Launched& launched, const std::vector<Use>& uses);

  /// Marks a launch as running concurrently with the host until `finish` has returned. `finish` is
  /// called before any dependent computation, and before memory of the launch is reused.
  void goes_on(const Launched& launched, const std::vector<Use>& uses,
               std::function<void()> finish);

  /// Returns a clock that is after all work queued on the stream so far.
  Clock behind(int stream) const;
  /// Makes all later work of the stream wait for the clock.
  void put_after(int stream, const Clock& clock);
  /// Makes the host wait for all work before the clock. Counts the wait under `why`.
  void wait_on_host(const Clock& clock, std::string_view why);
  /// Records that the host knows, without a wait, that the work before the clock has ended.
  void host_sees(const Clock& clock);
  bool host_is_past(const Clock& clock) const;
  /// As behind(), for all streams of a device.
  Clock behind_device(int device) const;

  /// Protects pinned memory that a concurrent copy uses: until the host has waited for the copy,
  /// the host must not write to this memory, nor read memory that the copy writes. `known`: the
  /// allocator of pinned memory knows of the copy, and keeps freed memory until its end.
  void hold_pinned(const Launched& launched, const Use& use, bool known);

  void count_bytes(int64_t to_device, int64_t to_host);
  Counters counters() const;
  void restart_counters();
  /// Calls `tell` with the counters after each wait of the host.
  void after_host_syncs(std::function<void(const Counters&)> tell);
  DeviceBytes bytes(int device) const;
  void restart_peak(int device);

  /// For signal handlers: prints the host's access to stderr. Returns false if the memory is
  /// neither of a device nor pinned.
  bool tell_of_touch(const void* address, bool writes) const noexcept;

 private:
  Machine() = default;

  struct Stream {
    int device;
    int64_t id;
    uint64_t num_launches = 0;
    Clock clock;
  };
  struct Held {
    const Allocation* block;
    char *begin, *end;  // whole pages
    int protection;
    int stream;
    uint64_t launch;
    std::string_view by;
    bool known;
  };

  struct GoesOn {
    int stream;
    uint64_t launch;
    std::once_flag once;
    std::vector<const Allocation*> memory;
    std::function<void()> finish;
    std::exception_ptr error;
  };

  Clock now(int stream) const;
  /// Called before the lock is taken, since other ranks may be threads of this process.
  void finish_before(const Clock& clock);
  void finish_users(const Allocation& block);
  void finish(GoesOn& work);
  std::string text(const Access& access) const;
  void check(const Access& access, const Allocation& block, const Clock& clock) const;
  void release_pinned();
  void protect_pinned(const char* begin, const char* end) const;

  mutable std::recursive_mutex mutex_;
  Memory memory_;
  std::vector<Stream> streams_;
  std::map<std::pair<int, int64_t>, int> numbers_;
  Clock host_;
  std::vector<Held> held_;
  std::vector<std::shared_ptr<GoesOn>> going_on_;
  /// Copies of allocations that were freed while another stream used them. The map holds copies
  /// because the memory may soon be reused.
  std::map<std::pair<int, int>, std::vector<Allocation>> freed_in_use_;
  Counters counters_;
  std::function<void(const Counters&)> after_host_syncs_;
  DeviceBytes bytes_[kNumDevices];
};

/// Returns a copy of the name that is never freed.
std::string_view interned(std::string_view name);

// Per thread, as on CUDA: a new thread is on device 0, and on each device's default stream.
int current_device();
void set_current_device(int device);
int64_t current_stream_id(int device);
void set_current_stream_id(int device, int64_t id);
/// Returns the number of a device's current stream.
int current_stream(int device);

/// From here on, a forbidden access of the host ends the process with a message.
void catch_touches();

}  // namespace longspan::testing::accelerator
