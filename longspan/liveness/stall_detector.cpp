#include "longspan/liveness/stall_detector.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <utility>

namespace longspan {
namespace {

using Beats = std::vector<std::optional<Beat>>;

/// A collective that a rank has not reached, and a rank that waits there.
struct Lag {
  std::string group;
  int64_t number;  // of the collective, counted from 1
  int waits;
};

std::string name_without_index(std::string group) {
  while (!group.empty() && group.back() >= '0' && group.back() <= '9') group.pop_back();
  return group;
}

/// Returns, for each rank, the first group in which it is behind.
std::map<int, Lag> lags_of(const Beats& beats) {
  std::map<std::string, std::pair<int64_t, int>> furthest;
  for (int rank = 0; rank < static_cast<int>(beats.size()); ++rank) {
    if (!beats[rank]) continue;
    for (const auto& [group, count] : beats[rank]->collectives) {
      const auto [at, is_new] = furthest.try_emplace(group, count, rank);
      if (!is_new && count > at->second.first) at->second = {count, rank};
    }
  }
  std::map<int, Lag> lags;
  for (int rank = 0; rank < static_cast<int>(beats.size()); ++rank) {
    if (!beats[rank]) continue;
    for (const auto& [group, count] : beats[rank]->collectives) {
      const auto& [most, first] = furthest.at(group);
      if (count < most) lags.try_emplace(rank, Lag{group, count + 1, first});
    }
  }
  return lags;
}

bool waits_itself(const Beats& beats, int rank) {
  return std::ranges::any_of(beats, [&](const std::optional<Beat>& other) {
    if (!other) return false;
    return std::ranges::any_of(beats[rank]->collectives, [&](const auto& own) {
      const auto at = other->collectives.find(own.first);
      return at != other->collectives.end() && at->second < own.second;
    });
  });
}

bool is_as_far(const std::optional<Beat>& a, const std::optional<Beat>& b) {
  if (!a || !b) return !a && !b;
  return a->collectives == b->collectives && a->step == b->step && a->doing == b->doing;
}

}  // namespace

std::string stragglers_of(const Beats& beats) {
  std::map<int, Lag> lags = lags_of(beats);
  std::map<int, Lag> ends = lags;
  std::erase_if(ends, [&](const auto& lag) { return waits_itself(beats, lag.first); });
  if (!ends.empty()) lags = std::move(ends);
  std::vector<std::string> sentences;
  for (const auto& [rank, lag] : lags) {
    const Beat& beat = *beats[rank];
    sentences.push_back(
        fmt::format("Rank {} (host {}, process {}) has not come to collective {} of the {} group, "
                    "where rank {} waits, in {}.",
                    rank, beat.host, beat.process, lag.number, name_without_index(lag.group),
                    lag.waits, beat.doing));
  }
  const size_t named = std::min(sentences.size(), kMostNamed), more = sentences.size() - named;
  sentences.resize(named);
  if (more > 0) sentences.push_back(fmt::format("And {} more.", more));
  return fmt::format("{}", fmt::join(sentences, " "));
}

void LastProgress::begin(size_t num_ranks, Clock::time_point now,
                         std::chrono::duration<double> limit) {
  if (moved_.size() != num_ranks || now - checked_ > limit / 2) moved_.assign(num_ranks, now);
  checked_ = now;
}

bool StoreSilence::check(Clock::time_point now, std::chrono::duration<double> limit) {
  limit = std::min<std::chrono::duration<double>>(limit, kMostSilence);
  if (now - checked_ > kMostSilence / 2) last_answer_ = now;
  checked_ = now;
  return now - last_answer_ > limit;
}

std::string SilenceDetector::check(const Beats& beats, int own_rank, const std::string& own_machine,
                                   Clock::time_point now, std::chrono::duration<double> limit) {
  limit = std::min<std::chrono::duration<double>>(limit, kMostSilence);
  last_.resize(beats.size());
  since_.begin(beats.size(), now, limit);
  std::string lost;
  for (int rank = 0; rank < static_cast<int>(beats.size()); ++rank) {
    const std::optional<Beat>& beat = beats[rank];
    if (rank == own_rank) continue;
    if (beat != last_[rank]) since_.has_moved(rank);
    const std::string to_blame = blame(rank, last_[rank], beat, own_machine);
    const bool silent = since_.still_for(rank) > limit;
    const bool ended = beat && (beat->ending == Beat::Ending::kFailed ||
                                state_of_process(*beat, own_machine) == ProcessState::kGone);
    if (lost.empty() && !to_blame.empty() && (silent || ended)) lost = to_blame;
    last_[rank] = beat;
  }
  return lost;
}

std::string StallDetector::check(const Beats& beats, Clock::time_point now,
                                 std::chrono::duration<double> limit) {
  last_.resize(beats.size());
  since_.begin(beats.size(), now, limit);
  Beats still(beats.size());
  for (size_t rank = 0; rank < beats.size(); ++rank) {
    if (!is_as_far(beats[rank], last_[rank])) since_.has_moved(rank);
    last_[rank] = beats[rank];
    const bool lives = beats[rank] && beats[rank]->ending == Beat::Ending::kNone;
    if (lives && since_.still_for(rank) > limit) still[rank] = beats[rank];
  }
  const std::string found = stragglers_of(still);
  if (found.empty()) return "";
  return fmt::format(
      "{} Nothing has moved there for {:.0f} s: what is named hangs, or takes longer than "
      "ddp_timeout.",
      found, limit.count());
}

}  // namespace longspan
