#include "longspan/testing/accelerator/machine.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <set>
#include <stdexcept>
#include <utility>

#include "longspan/testing/accelerator/findings.h"

namespace longspan::testing::accelerator {
namespace {

struct Current {
  int device = 0;
  int64_t streams[kNumDevices] = {};
};

Current& current() {
  static thread_local Current of_thread;
  return of_thread;
}

}  // namespace

std::string_view interned(std::string_view name) {
  static auto* const mutex = new std::mutex;
  static auto* const names = new std::set<std::string, std::less<>>;
  const std::lock_guard lock(*mutex);
  auto at = names->find(name);
  if (at == names->end()) at = names->emplace(name).first;
  return *at;
}

int current_device() { return current().device; }

void set_current_device(int device) {
  if (device < 0 || device >= kNumDevices) throw std::out_of_range("no such simulated device");
  current().device = device;
}

int64_t current_stream_id(int device) { return current().streams[device]; }
void set_current_stream_id(int device, int64_t id) { current().streams[device] = id; }
int current_stream(int device) { return Machine::get().stream(device, current_stream_id(device)); }

Machine& Machine::get() {
  static auto* const machine = new Machine;  // tensors may be freed after main has ended
  return *machine;
}

int Machine::stream(int device, int64_t id) {
  const std::lock_guard lock(mutex_);
  const auto [at, is_new] = numbers_.try_emplace({device, id}, static_cast<int>(streams_.size()));
  if (is_new) streams_.push_back({device, id, 0, {}});
  return at->second;
}

std::string Machine::stream_text(int stream) const {
  const std::lock_guard lock(mutex_);
  const Stream& of = streams_.at(static_cast<size_t>(stream));
  return fmt::format("stream {} of device {}", of.id, of.device);
}

std::string Machine::text(const Access& access) const {
  return fmt::format("{} (launch {} on {})", access.by, access.launch, stream_text(access.stream));
}

Clock Machine::now(int stream) const {
  Clock clock = streams_.at(static_cast<size_t>(stream)).clock;
  clock.join(host_);
  return clock;
}

Allocation& Machine::allocate(size_t size, int device, int stream) {
  const std::lock_guard lock(mutex_);
  throw_reported();
  if (device == kPinned) return memory_.allocate(size, device, 0);
  const Clock clock = now(stream);
  std::vector<Allocation>& suspects = freed_in_use_[{device, stream}];
  std::erase_if(suspects, [&](const Allocation& block) {
    return !block.history.unfinished(clock, block.told_of);
  });
  if (!suspects.empty()) {
    const Allocation block = suspects.front();
    suspects.clear();
    report(
        Fault::kFreedInUse,
        fmt::format("{} was freed to {}, whose next allocation may have it, and {} may still use "
                    "it: record_stream, or a wait before the tensor goes, is missing",
                    block.text(), stream_text(stream),
                    text(*block.history.unfinished(clock, block.told_of))));
  }
  Allocation& block = memory_.allocate(size, device, stream);
  const uint64_t launch = streams_.at(static_cast<size_t>(stream)).num_launches;
  block.history.begin({"its allocation", stream, launch, 0, block.size, true});
  block.told_of = {stream};
  DeviceBytes& bytes = bytes_[device];
  bytes.now += static_cast<int64_t>(size);
  bytes.most = std::max(bytes.most, bytes.now);
  return block;
}

void Machine::free(Allocation& block) noexcept {
  try {
    finish_users(block);
    const std::lock_guard lock(mutex_);
    if (block.device == kPinned) {
      std::erase_if(held_, [&](const Held& held) {
        if (held.block != &block) return false;
        if (!held.known) {
          report_later(Fault::kPinnedFreed,
                       fmt::format("{} is freed while {} may still use it, of which torch's "
                                   "allocator does not know",
                                   block.text(), held.by));
        }
        return true;
      });
      protect_pinned(block.front, block.front + block.size);
    } else {
      bytes_[block.device].now -= static_cast<int64_t>(block.requested);
      if (block.history.unfinished(now(block.stream), block.told_of)) {
        freed_in_use_[{block.device, block.stream}].push_back(block);
      }
    }
    memory_.free(block);
  } catch (const std::exception& error) {
    fmt::print(stderr, "simulated accelerator: {}\n", error.what());
    std::abort();
  }
}

void Machine::tell_of(const void* front, int stream) {
  const std::lock_guard lock(mutex_);
  if (Allocation* const block = memory_.find(front)) block->told_of.push_back(stream);
}

Allocation* Machine::find(const void* front) const {
  const std::lock_guard lock(mutex_);
  if (!memory_.is_of_device(front) && !memory_.is_pinned(front)) return nullptr;
  return memory_.find(front);
}

bool Machine::is_pinned(const void* front) const {
  const std::lock_guard lock(mutex_);
  if (!memory_.is_pinned(front)) return false;
  const Allocation* const block = memory_.find(front);
  return block != nullptr && block->live;
}

char* Machine::back_of(const void* front) const {
  const std::lock_guard lock(mutex_);
  const Allocation* const block = find(front);
  return block != nullptr ? memory_.window_of(*block).back_of(front) : nullptr;
}

void Machine::check(const Access& access, const Allocation& block, const Clock& clock) const {
  if (!block.live) {
    report(Fault::kFreed, fmt::format("{} uses {}, which is freed", text(access), block.text()));
  }
  if (const auto before = block.history.conflict_of(access, clock)) {
    report(Fault::kRace,
           fmt::format("{} {} bytes {} to {} of {}, and nothing makes it wait for {}, which {} "
                       "bytes {} to {}",
                       text(access), access.writes ? "writes" : "reads", access.begin, access.end,
                       block.text(), text(*before), before->writes ? "writes" : "reads",
                       before->begin, before->end));
  }
  if (!access.writes && block.device != kPinned &&
      !block.history.was_written(access.begin, access.end)) {
    report(Fault::kUninitialized,
           fmt::format("{} reads bytes {} to {} of {}, which nothing has written", text(access),
                       access.begin, access.end, block.text()));
  }
}

Launched Machine::launch(std::string_view name, int stream, const std::vector<Use>& uses) {
  finish_before(behind(stream));
  const std::lock_guard lock(mutex_);
  throw_reported();
  Stream& on = streams_.at(static_cast<size_t>(stream));
  const Launched launched{interned(name), stream, on.num_launches + 1};
  const Clock clock = now(stream);
  std::vector<std::pair<Allocation*, Access>> accesses;
  for (const Use& use : uses) {
    if (use.size == 0) continue;
    Allocation* const block = find(use.front);
    if (block == nullptr) {
      report(Fault::kFreed, fmt::format("{} uses a tensor whose memory is not there", name));
    }
    const auto begin = static_cast<size_t>(static_cast<const char*>(use.front) - block->front);
    accesses.emplace_back(
        block, Access{launched.name, stream, launched.count, begin, begin + use.size, use.writes});
    check(accesses.back().second, *block, clock);
  }
  on.clock = clock;
  on.num_launches = launched.count;
  on.clock.set(stream, launched.count);
  for (const auto& [block, access] : accesses) block->history.add(access);
  ++counters_.launches;
  ++counters_.launches_of[std::string(name)];
  last_launch() = name;
  return launched;
}

void Machine::also_uses(const Launched& launched, const std::vector<Use>& uses) {
  const std::lock_guard lock(mutex_);
  for (const Use& use : uses) {
    Allocation* const block = use.size > 0 ? memory_.find(use.front) : nullptr;
    if (block == nullptr) continue;
    const auto begin = static_cast<size_t>(static_cast<const char*>(use.front) - block->front);
    block->history.add(
        {launched.name, launched.stream, launched.count, begin, begin + use.size, use.writes});
  }
}

void Machine::goes_on(const Launched& launched, const std::vector<Use>& uses,
                      std::function<void()> finish) {
  auto work = std::make_shared<GoesOn>();
  work->stream = launched.stream;
  work->launch = launched.count;
  work->finish = std::move(finish);
  const std::lock_guard lock(mutex_);
  for (const Use& use : uses) {
    if (const Allocation* const block = find(use.front)) work->memory.push_back(block);
  }
  going_on_.push_back(std::move(work));
}

void Machine::finish(GoesOn& work) {
  std::function<void()> over;  // its captures are freed after the lock is released
  std::call_once(work.once, [&] {
    try {
      work.finish();
    } catch (...) {
      work.error = std::current_exception();
    }
    const std::lock_guard lock(mutex_);
    work.memory.clear();
    over = std::move(work.finish);
  });
}

void Machine::finish_before(const Clock& clock) {
  std::vector<std::shared_ptr<GoesOn>> covered;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& work : going_on_) {
      if (clock.covers(work->stream, work->launch)) covered.push_back(work);
    }
  }
  for (const auto& work : covered) finish(*work);
  {
    const std::lock_guard lock(mutex_);
    for (const auto& work : covered) std::erase(going_on_, work);
  }
  for (const auto& work : covered) {
    if (work->error) std::rethrow_exception(work->error);
  }
}

// An error is kept for the next dependent computation.
void Machine::finish_users(const Allocation& block) {
  std::vector<std::shared_ptr<GoesOn>> users;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& work : going_on_) {
      if (std::ranges::find(work->memory, &block) != work->memory.end()) users.push_back(work);
    }
  }
  for (const auto& work : users) finish(*work);
}

Clock Machine::behind(int stream) const {
  const std::lock_guard lock(mutex_);
  return now(stream);
}

Clock Machine::behind_device(int device) const {
  const std::lock_guard lock(mutex_);
  Clock clock = host_;
  for (const Stream& stream : streams_) {
    if (stream.device == device) clock.join(stream.clock);
  }
  return clock;
}

void Machine::put_after(int stream, const Clock& clock) {
  const std::lock_guard lock(mutex_);
  streams_.at(static_cast<size_t>(stream)).clock.join(clock);
}

void Machine::wait_on_host(const Clock& clock, std::string_view why) {
  host_sees(clock);
  const std::lock_guard lock(mutex_);
  ++counters_.host_syncs;
  ++counters_.host_syncs_of[std::string(why)];
  if (after_host_syncs_) after_host_syncs_(counters_);
}

void Machine::host_sees(const Clock& clock) {
  finish_before(clock);
  const std::lock_guard lock(mutex_);
  host_.join(clock);
  release_pinned();
}

bool Machine::host_is_past(const Clock& clock) const {
  const std::lock_guard lock(mutex_);
  for (int stream = 0; stream < std::ssize(streams_); ++stream) {
    if (!host_.covers(stream, clock.of(stream))) return false;
  }
  return true;
}

void Machine::count_bytes(int64_t to_device, int64_t to_host) {
  const std::lock_guard lock(mutex_);
  counters_.bytes_to_device += to_device;
  counters_.bytes_to_host += to_host;
}

Counters Machine::counters() const {
  const std::lock_guard lock(mutex_);
  return counters_;
}

void Machine::restart_counters() {
  const std::lock_guard lock(mutex_);
  counters_ = {};
}

void Machine::after_host_syncs(std::function<void(const Counters&)> tell) {
  const std::lock_guard lock(mutex_);
  after_host_syncs_ = std::move(tell);
}

DeviceBytes Machine::bytes(int device) const {
  const std::lock_guard lock(mutex_);
  return bytes_[device];
}

void Machine::restart_peak(int device) {
  const std::lock_guard lock(mutex_);
  bytes_[device].most = bytes_[device].now;
}

}  // namespace longspan::testing::accelerator
