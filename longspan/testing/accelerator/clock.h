// Happens-before between the host and the streams of devices, by vector clocks: every stream counts
// its launches, and a clock says up to which launch of each stream one is certain to come later
// (Mattern, Virtual Time and Global States of Distributed Systems, 1989).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

namespace longspan::testing::accelerator {

/// Up to which launch of each stream everything has ended. Streams are numbered from 0 over all
/// devices.
class Clock {
 public:
  bool covers(int stream, uint64_t launch) const { return of(stream) >= launch; }
  uint64_t of(int stream) const {
    const auto at = static_cast<size_t>(stream);
    return at < launches_.size() ? launches_[at] : 0;
  }
  void set(int stream, uint64_t launch);
  /// From here on it is later than `other` too.
  void join(const Clock& other);

 private:
  std::vector<uint64_t> launches_;
};

/// What a launch does to some bytes of an allocation. `launch` counts those of its stream.
struct Access {
  std::string_view by;  // the operator's name, which lives as long as the process
  int stream = 0;
  uint64_t launch = 0;
  size_t begin = 0, end = 0;
  bool writes = false;
};

/// The accesses to one allocation that later ones may conflict with.
class AccessHistory {
 public:
  /// An access to the same bytes that `next` must come after and, at this clock, need not: one of
  /// the two writes, and they are of two streams.
  std::optional<Access> conflict_of(const Access& next, const Clock& clock) const;
  /// The first: memory that others may have had before, as far as its stream had come.
  void begin(const Access& allocation) { accesses_ = {allocation}; }
  /// Adds an access, and forgets those that it stands for: who comes after it comes after them.
  void add(const Access& access);
  /// An access by a stream other than these that has not ended at this clock.
  std::optional<Access> unfinished(const Clock& clock, const std::vector<int>& apart_from) const;
  /// Has anything written to any of these bytes?
  bool was_written(size_t begin, size_t end) const;

 private:
  std::vector<Access> accesses_;
  std::vector<std::pair<size_t, size_t>> written_;  // sorted, apart from each other
};

}  // namespace longspan::testing::accelerator
