// Happens-before between the host and the streams of devices, by vector clocks. Every stream counts
// its launches. A clock holds, for each stream, the last launch that is certain to be earlier
// (Mattern, Virtual Time and Global States of Distributed Systems, 1989).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

namespace longspan::testing::accelerator {

/// For each stream, the last launch that has ended together with all launches before it. Streams
/// are numbered from 0 over all devices.
class Clock {
 public:
  bool covers(int stream, uint64_t launch) const { return of(stream) >= launch; }
  uint64_t of(int stream) const {
    const auto at = static_cast<size_t>(stream);
    return at < launches_.size() ? launches_[at] : 0;
  }
  void set(int stream, uint64_t launch);
  /// Sets each stream's launch to the later one of both clocks.
  void join(const Clock& other);

 private:
  std::vector<uint64_t> launches_;
};

/// An access of a launch to some bytes of an allocation. `launch` counts the launches of its
/// stream.
struct Access {
  std::string_view by;  // the operator's name, which is never freed
  int stream = 0;
  uint64_t launch = 0;
  size_t begin = 0, end = 0;
  bool writes = false;
};

/// The accesses to one allocation that later accesses may conflict with.
class AccessHistory {
 public:
  /// Returns an access that conflicts with `next`: to the same bytes, by another stream, not
  /// ordered before `next` at this clock, and at least one of the two writes.
  std::optional<Access> conflict_of(const Access& next, const Clock& clock) const;
  /// Records the allocation as the first access. Earlier allocations may have used the same memory
  /// up to this point of the allocation's stream.
  void begin(const Access& allocation) { accesses_ = {allocation}; }
  /// Adds an access, and forgets each earlier access that the new access makes redundant, because
  /// everything after the new access is also after the earlier access.
  void add(const Access& access);
  /// Returns an access that has not ended at this clock, by a stream that is not in `apart_from`.
  std::optional<Access> unfinished(const Clock& clock, const std::vector<int>& apart_from) const;
  /// True if any of the bytes [begin, end) was written.
  bool was_written(size_t begin, size_t end) const;

 private:
  std::vector<Access> accesses_;
  std::vector<std::pair<size_t, size_t>> written_;  // sorted and disjoint
};

}  // namespace longspan::testing::accelerator
