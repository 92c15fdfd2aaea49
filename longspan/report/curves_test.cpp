#include "longspan/report/curves.h"

#include <cmath>

#include "doctest/doctest.h"

namespace longspan {

TEST_CASE("smoothing: a constant stays, a step is approached by the weight") {
  for (double value : smooth({3.0, 3.0, 3.0})) CHECK(value == doctest::Approx(3.0));
  const double weight = 1.8 * (1 / (1 + std::exp(-0.15)) - 0.5);
  const std::vector<double> smoothed = smooth({1.0, 0.0, 0.0});
  CHECK(smoothed[0] == doctest::Approx(1.0));
  CHECK(smoothed[1] == doctest::Approx(weight));
  CHECK(smoothed[2] == doctest::Approx(weight * weight));
  CHECK(smooth({}).empty());
}

}  // namespace longspan
