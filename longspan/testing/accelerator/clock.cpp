#include "longspan/testing/accelerator/clock.h"

#include <algorithm>

namespace longspan::testing::accelerator {

void Clock::set(int stream, uint64_t launch) {
  const auto at = static_cast<size_t>(stream);
  if (at >= launches_.size()) launches_.resize(at + 1);
  launches_[at] = launch;
}

void Clock::join(const Clock& other) {
  if (other.launches_.size() > launches_.size()) launches_.resize(other.launches_.size());
  for (size_t i = 0; i < other.launches_.size(); ++i) {
    launches_[i] = std::max(launches_[i], other.launches_[i]);
  }
}

std::optional<Access> AccessHistory::conflict_of(const Access& next, const Clock& clock) const {
  for (const Access& before : accesses_) {
    const bool touches = before.begin < next.end && next.begin < before.end;
    if (!touches || !(before.writes || next.writes) || before.stream == next.stream) continue;
    if (!clock.covers(before.stream, before.launch)) return before;
  }
  return {};
}

void AccessHistory::add(const Access& access) {
  std::erase_if(accesses_, [&](const Access& before) {
    const bool within = access.begin <= before.begin && before.end <= access.end;
    return within && (access.writes || (before.stream == access.stream && !before.writes));
  });
  accesses_.push_back(access);
  if (!access.writes || access.begin == access.end) return;
  std::pair<size_t, size_t> all{access.begin, access.end};
  std::erase_if(written_, [&](const auto& range) {
    const bool touches = range.first <= all.second && all.first <= range.second;
    if (touches) all = {std::min(all.first, range.first), std::max(all.second, range.second)};
    return touches;
  });
  written_.insert(std::ranges::upper_bound(written_, all), all);
}

std::optional<Access> AccessHistory::unfinished(const Clock& clock,
                                                const std::vector<int>& apart_from) const {
  for (const Access& access : accesses_) {
    if (std::ranges::find(apart_from, access.stream) != apart_from.end()) continue;
    if (!clock.covers(access.stream, access.launch)) return access;
  }
  return {};
}

bool AccessHistory::was_written(size_t begin, size_t end) const {
  return std::ranges::any_of(
      written_, [&](const auto& range) { return range.first < end && begin < range.second; });
}

}  // namespace longspan::testing::accelerator
