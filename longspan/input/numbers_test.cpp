#include "longspan/input/numbers.h"

#include <doctest/doctest.h>

#include <limits>
#include <nlohmann/json.hpp>

namespace longspan {
namespace {

using nlohmann::json;

std::string number_complaint(const json& value, int64_t least = INT64_MIN,
                             int64_t most = INT64_MAX) {
  try {
    whole_number(value, "file.json: key", least, most);
  } catch (const UserError& error) {
    return error.what();
  }
  return "(accepted)";
}

TEST_CASE("numbers: a double is the whole number that it is, or none") {
  CHECK(as_whole(0.0) == 0);
  CHECK(as_whole(-3.0) == -3);
  CHECK(as_whole(1e18) == 1'000'000'000'000'000'000);
  CHECK(as_whole(-0x1p63) == INT64_MIN);
  CHECK_FALSE(as_whole(0x1p63));
  CHECK_FALSE(as_whole(1e19));
  CHECK_FALSE(as_whole(-1e19));
  CHECK_FALSE(as_whole(0.5));
  CHECK_FALSE(as_whole(std::numeric_limits<double>::quiet_NaN()));
  CHECK_FALSE(as_whole(std::numeric_limits<double>::infinity()));
  CHECK_FALSE(as_whole(-std::numeric_limits<double>::infinity()));
  CHECK_FALSE(as_whole(std::numeric_limits<double>::denorm_min()));
}

TEST_CASE("numbers: of JSON nothing wraps") {
  CHECK(as_whole(json(7)) == 7);
  CHECK(as_whole(json(-7)) == -7);
  CHECK(as_whole(json(8.0)) == 8);
  CHECK(as_whole(json::parse("9223372036854775807")) == INT64_MAX);
  CHECK(as_whole(json::parse("-9223372036854775808")) == INT64_MIN);
  CHECK_FALSE(as_whole(json::parse("9223372036854775808")));
  CHECK_FALSE(as_whole(json::parse("18446744073709551615")));  // get<int64_t>() returns -1
  CHECK_FALSE(as_whole(json::parse("99999999999999999999")));
  CHECK_FALSE(as_whole(json(4.7)));
  CHECK_FALSE(as_whole(json("7")));
  CHECK_FALSE(as_whole(json(nullptr)));
  CHECK_FALSE(as_whole(json(true)));
}

TEST_CASE("numbers: what is refused names the key, what was given and the limits") {
  CHECK(number_complaint(4.7, 1, 100) ==
        "file.json: key: 4.7 was given; wanted is a whole number, at least 1, at most 100");
  CHECK(number_complaint(0, 1, 100).find("0 was given") != std::string::npos);
  CHECK(number_complaint(101, 1, 100).find("at most 100") != std::string::npos);
  CHECK(number_complaint(json::array({1})).find("array was given") != std::string::npos);
  CHECK(number_complaint(100, 1, 100) == "(accepted)");
  CHECK_THROWS_WITH_AS(whole_number(std::nan(""), "k"), doctest::Contains("k: nan was given"),
                       UserError);
  CHECK_THROWS_WITH_AS(whole_number(1e19, "k", 0), doctest::Contains("1e+19 was given"), UserError);
}

TEST_CASE("numbers: products and sums are right or refused") {
  CHECK(product_of({}) == 1);
  CHECK(product_of({3, 4, 5}) == 60);
  CHECK(product_of({INT64_MAX, 2, 0}) == 0);
  CHECK_FALSE(product_of({int64_t{1} << 32, int64_t{1} << 31}));
  CHECK(sum_of({1, 2}) == 3);
  CHECK_FALSE(sum_of({INT64_MAX, 1}));
  CHECK(bounded_product({1 << 20, 1 << 20}, "x") == int64_t{1} << 40);
  CHECK_THROWS_WITH_AS(bounded_product({kMostCounted, 2}, "rows of a step"),
                       doctest::Contains("rows of a step: 9007199254740992 x 2 is more than"),
                       UserError);
  CHECK_THROWS_WITH_AS(counted_sum({INT64_MAX, 1}, "all"), doctest::Contains("all: "), UserError);
}

}  // namespace
}  // namespace longspan
