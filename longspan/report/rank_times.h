// Times of each rank's steps, and the ranks that keep the others waiting. No torch.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "longspan/liveness/beat.h"

namespace longspan {

/// Mean seconds of a rank's step.
struct RankTime {
  int rank = 0;
  std::string host;
  int64_t process = 0;
  double step = 0.0;
  double waited = 0.0;  // for other ranks; part of `step`

  double own() const { return step - waited; }
};

/// Compares the ranks' times from one log entry to the next.
class RankTimes {
 public:
  static constexpr double kLeastSeconds = 30.0;
  /// A rank is named after steps of so many seconds.
  explicit RankTimes(double least_seconds = kLeastSeconds) : least_seconds_(least_seconds) {}

  /// Takes all ranks' totals so far. Returns the means of the steps since the last call, by rank;
  /// without ranks that have done no step since then.
  std::vector<RankTime> add(const std::vector<std::optional<Beat>>& totals);
  /// Returns a sentence on a rank that has been the slowest in the last entries, by far; "" where
  /// there is none, or the rank was named before.
  std::string straggler();

 private:
  double least_seconds_;
  std::vector<StepTimes> before_;
  std::optional<RankTime> slowest_;
  double median_ = 0.0;   // of the ranks' own times, beside slowest_
  int num_entries_ = 0;   // in a row with this slowest rank
  double seconds_ = 0.0;  // of the steps of these entries
  std::set<int> named_;
};

}  // namespace longspan
