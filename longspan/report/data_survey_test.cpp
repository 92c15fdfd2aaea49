#include "longspan/report/data_survey.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "longspan/report/data_page.h"

namespace longspan {
namespace {

TEST_CASE("bins of lengths: each length is in one bin, and bins follow each other") {
  const std::vector<std::vector<int64_t>> all = {
      {1}, {1, 2, 3}, {7, 7, 7}, {64, 65, 127, 128, 129, 1 << 20}, {1, int64_t{1} << 40}};
  for (const std::vector<int64_t>& lengths : all) {
    const std::vector<LengthBin> bins = length_bins(lengths, 12);
    CHECK(bins.size() <= 12);
    int64_t end = bins.front().begin;
    for (const LengthBin& bin : bins) {
      CHECK(bin.begin == end);
      CHECK(bin.begin < bin.end);
      end = bin.end;
      CHECK(bin.count == std::ranges::count_if(lengths, [&](int64_t length) {
              return length >= bin.begin && length < bin.end;
            }));
    }
    CHECK(bins.front().begin <= lengths.front());
    CHECK(end > lengths.back());
  }
}

TEST_CASE("shares that round to nothing or all are not shown as such") {
  CHECK(percent(0) == "0.0 %");
  CHECK(percent(1) == "100.0 %");
  CHECK(percent(0.0001) == "< 0.1 %");
  CHECK(percent(0.9999) == "> 99.9 %");
  CHECK(percent(0.123) == "12.3 %");
}

TEST_CASE("texts in HTML") {
  CHECK(escaped_html("<b a=\"1\" b='2'>&\x1b") ==
        "&lt;b a=&quot;1&quot; b=&#39;2&#39;&gt;&amp;\\x1b");
}

}  // namespace
}  // namespace longspan
