#include "longspan/report/rank_times.h"

#include <doctest/doctest.h>

namespace longspan {
namespace {

using Totals = std::vector<std::optional<Beat>>;

/// Adds `steps` steps of a rank that takes `own` of the `seconds` of each.
void pass(std::optional<Beat>& beat, int64_t steps, double seconds, double own) {
  if (!beat) beat.emplace();
  beat->host = "node1";
  beat->times.steps += steps;
  beat->times.seconds += static_cast<double>(steps) * seconds;
  beat->times.waited += static_cast<double>(steps) * (seconds - own);
}

TEST_CASE("rank times: means since the last entry, without ranks that have done no step") {
  RankTimes times;
  Totals totals(3);
  pass(totals[0], 2, 3.0, 1.0);
  pass(totals[1], 1, 3.0, 3.0);
  CHECK(times.add(totals).size() == 2);
  pass(totals[0], 4, 5.0, 1.5);
  const std::vector<RankTime> means = times.add(totals);
  REQUIRE(means.size() == 1);
  CHECK(means[0].rank == 0);
  CHECK(means[0].step == doctest::Approx(5.0));
  CHECK(means[0].waited == doctest::Approx(3.5));
  CHECK(means[0].own() == doctest::Approx(1.5));
}

TEST_CASE("rank times: the slowest rank of three entries in a row is named once") {
  RankTimes times;
  Totals totals(4);
  const auto entry = [&](int slow, double factor) {
    for (int rank = 0; rank < 4; ++rank) {
      pass(totals[rank], 5, 4.0, rank == slow ? 2.0 * factor : 2.0);
    }
    times.add(totals);
    return times.straggler();
  };
  for (int i = 0; i < 6; ++i) CHECK(entry(i % 3, 2.0).empty());  // another one each time
  for (int i = 0; i < 6; ++i) CHECK(entry(3, 1.2).empty());      // not by far
  CHECK(entry(3, 1.5).empty());
  CHECK(entry(3, 1.5).empty());
  CHECK(entry(3, 1.5).find("rank 3 (host node1, process 0) keeps the others waiting: without "
                           "waits, its step takes 3 s, 1.50 times the median of the ranks (2 s), "
                           "in 3 log entries in a row") != std::string::npos);
  for (int i = 0; i < 4; ++i) CHECK(entry(3, 1.5).empty());  // named before
}

TEST_CASE("rank times: steps of half a minute are needed to name a rank") {
  RankTimes times;
  Totals totals(2);
  for (int i = 1; i <= 20; ++i) {
    pass(totals[0], 1, 2.0, 0.5);
    pass(totals[1], 1, 2.0, 2.0);
    times.add(totals);
    CHECK(times.straggler().empty() == (i != 15));
  }
}

}  // namespace
}  // namespace longspan
