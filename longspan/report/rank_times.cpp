#include "longspan/report/rank_times.h"

#include <fmt/format.h>

#include <algorithm>

namespace longspan {
namespace {

constexpr double kSlow = 1.25;  // own time, in medians
constexpr int kEntries = 3;
constexpr size_t kMostRanks = 4;  // that are named

double lower_median(const std::vector<RankTime>& times) {
  std::vector<double> own;
  for (const RankTime& time : times) own.push_back(time.own());
  const auto middle = own.begin() + static_cast<std::ptrdiff_t>((own.size() - 1) / 2);
  std::nth_element(own.begin(), middle, own.end());
  return *middle;
}

}  // namespace

std::vector<RankTime> RankTimes::add(const std::vector<std::optional<Beat>>& totals) {
  std::vector<RankTime> means;
  before_.resize(totals.size());
  double seconds = 0.0;
  for (size_t rank = 0; rank < totals.size(); ++rank) {
    if (!totals[rank]) continue;
    const StepTimes now = totals[rank]->times, then = before_[rank];
    if (now.steps <= then.steps) continue;
    before_[rank] = now;
    const auto count = static_cast<double>(now.steps - then.steps);
    seconds = std::max(seconds, now.seconds - then.seconds);
    means.push_back({.rank = static_cast<int>(rank),
                     .host = totals[rank]->host,
                     .process = totals[rank]->process,
                     .step = (now.seconds - then.seconds) / count,
                     .waited = (now.waited - then.waited) / count});
  }
  if (means.size() < 2) return means;
  median_ = lower_median(means);
  const RankTime& slowest = *std::ranges::max_element(means, {}, &RankTime::own);
  const bool is_slow = median_ > 0.0 && slowest.own() > kSlow * median_;
  const bool same = is_slow && slowest_ && slowest_->rank == slowest.rank;
  num_entries_ = same ? num_entries_ + 1 : 1;
  seconds_ = same ? seconds_ + seconds : seconds;
  slowest_ = is_slow ? std::optional(slowest) : std::nullopt;
  return means;
}

std::string RankTimes::straggler() {
  if (!slowest_ || num_entries_ < kEntries || seconds_ < least_seconds_) return "";
  if (named_.size() == kMostRanks || !named_.insert(slowest_->rank).second) return "";
  return fmt::format(
      "warning: rank {} (host {}, process {}) keeps the others waiting: without waits, its step "
      "takes {:.3g} s, {:.2f} times the median of the ranks ({:.3g} s), in {} log entries in a "
      "row. Likely causes: its GPU or processor runs at a lower clock or serves other programs, "
      "or its rows take more work.",
      slowest_->rank, slowest_->host, slowest_->process, slowest_->own(), slowest_->own() / median_,
      median_, num_entries_);
}

}  // namespace longspan
