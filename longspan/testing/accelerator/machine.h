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

/// What has happened since the last restart, on all devices.
struct Counters {
  int64_t launches = 0;
  int64_t host_syncs = 0;  // times that the host has waited for a device
  int64_t bytes_to_device = 0, bytes_to_host = 0;
  std::map<std::string, int64_t, std::less<>> launches_of, host_syncs_of;  // by name
};

/// Bytes of a device's allocations as they were asked for: now, and the most at once.
struct DeviceBytes {
  int64_t now = 0, most = 0;
};

/// Bytes that a launch reads or writes; `front`: where they begin.
struct Use {
  const void* front = nullptr;
  size_t size = 0;
  bool writes = false;
};

/// Where a launch is: the `count`-th of its stream.
struct Launched {
  std::string_view name;
  int stream = 0;
  uint64_t count = 0;
};

/// All of it. Launches are computed at once, by whoever starts them, so that results never depend
/// on time: what a GPU might do in another order is found by the clocks. The host is one: what one
/// of its threads has waited for, all know. Safe for threads.
class Machine {
 public:
  static Machine& get();

  /// A stream's number. Of each device, `id` 0 is the default stream.
  int stream(int device, int64_t id);
  /// As in "stream 3 of device 0".
  std::string stream_text(int stream) const;

  /// `stream`: what it is made on; ignored of kPinned. Throws FaultError where the stream may get
  /// memory that another one still uses.
  Allocation& allocate(size_t size, int device, int stream);
  /// From a deleter: throws nothing.
  void free(Allocation& block) noexcept;
  void tell_of(const void* front, int stream);
  /// Null: of neither a device nor pinned.
  Allocation* find(const void* front) const;
  bool is_of_device(const void* front) const { return memory_.is_of_device(front); }
  bool is_pinned(const void* front) const;
  /// The address for kernels. Null: of no allocation.
  char* back_of(const void* front) const;

  /// Starts a launch. Throws FaultError: it comes after nothing that orders it behind what it
  /// depends on, it reads what nothing has written, its memory was freed.
  Launched launch(std::string_view name, int stream, const std::vector<Use>& uses);
  /// What a launch has also done, to memory that was allocated for it.
  void also_uses(const Launched& launched, const std::vector<Use>& uses);

  /// The launch goes on beside the host, until `finish` has returned. That is called, by whoever
  /// comes first, before anything is computed that comes after it, and before memory that it uses
  /// is anybody else's.
  void goes_on(const Launched& launched, const std::vector<Use>& uses,
               std::function<void()> finish);

  /// All that the stream was given so far.
  Clock behind(int stream) const;
  /// What the stream is given from here on comes after it.
  void put_after(int stream, const Clock& clock);
  /// The host waits, which is counted under this name.
  void wait_on_host(const Clock& clock, std::string_view why);
  /// The host has seen that it is over, without waiting.
  void host_sees(const Clock& clock);
  bool host_is_past(const Clock& clock) const;
  /// The same of all streams of a device.
  Clock behind_device(int device) const;

  /// A copy that runs beside the host uses pinned memory: until the host has waited for it, the
  /// host must not write there, nor read what the copy writes. `known`: the allocator of pinned
  /// memory learns of the copy, and keeps the memory when it is freed.
  void hold_pinned(const Launched& launched, const Use& use, bool known);

  void count_bytes(int64_t to_device, int64_t to_host);
  Counters counters() const;
  void restart_counters();
  /// `tell` gets the counters whenever the host has waited.
  void after_host_syncs(std::function<void(const Counters&)> tell);
  DeviceBytes bytes(int device) const;
  void restart_peak(int device);

  /// For a signal's handler: tells on stderr what the host has touched. False: neither of a device
  /// nor pinned.
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
  /// Before the lock is taken: other ranks may be threads of this process.
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
  /// What was freed while another stream used it: a copy, since the memory may be another's soon.
  std::map<std::pair<int, int>, std::vector<Allocation>> freed_in_use_;
  Counters counters_;
  std::function<void(const Counters&)> after_host_syncs_;
  DeviceBytes bytes_[kNumDevices];
};

/// A name that lives as long as the process.
std::string_view interned(std::string_view name);

// Of this thread, as on CUDA: a new thread is on device 0, and on each device's default stream.
int current_device();
void set_current_device(int device);
int64_t current_stream_id(int device);
void set_current_stream_id(int device, int64_t id);
/// The number of the current stream of a device.
int current_stream(int device);

/// From here on, a host that touches what it must not ends the process, with a text.
void catch_touches();

}  // namespace longspan::testing::accelerator
