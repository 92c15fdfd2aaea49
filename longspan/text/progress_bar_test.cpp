#include "longspan/text/progress_bar.h"

#include <doctest/doctest.h>

#include <cmath>
#include <utility>

namespace longspan {

TEST_CASE("progress bar: says loss and speed, leaves out what is unknown") {
  CHECK(progress_message(1.23456, 1234567.4, NAN) == "loss 1.2346  1,234,567 tokens/s");
  CHECK(progress_message(1.0, 1500, 1000) == "loss 1.0000  1,500 tokens/s (1,000 computed)");
  CHECK(progress_message(0.5, NAN, NAN) == "loss 0.5000");
  CHECK(progress_message(NAN, 999, NAN) == "999 tokens/s");
  CHECK(progress_message(NAN, NAN, NAN) == "");
  CHECK(with_commas(-123456) == "-123,456");
}

TEST_CASE("progress bar: works with and without a terminal, and moves") {
  ProgressBar bar(10, 2);
  bar.update(3, "loss 1.0000");
  ProgressBar moved = std::move(bar);
  moved.update(10, "");
  moved = ProgressBar(0);
}

}  // namespace longspan
