#include "longspan/input/json_object.h"

#include <doctest/doctest.h>

#include <functional>
#include <nlohmann/json.hpp>

#include "longspan/base/user_error.h"
#include "longspan/input/json_text.h"

namespace longspan {
namespace {

std::string object_complaint(const std::function<void()>& work) {
  try {
    work();
  } catch (const UserError& error) {
    return error.what();
  }
  return "(accepted)";
}

TEST_CASE("json object: values of their types") {
  const auto json = parse_json(
      R"({"n": 3, "x": 2.5, "t": "text", "b": true, "none": null, "o": {"k": 1}, "l": [1, 2],
          "d": [0.5, 1], "names": ["a", "b"], "big": 18446744073709551615, "mixed": [1, null]})",
      "f.json");
  const JsonObject object(json, "f.json");
  CHECK(object.get<int64_t>("n") == 3);
  CHECK(object.get<int>("n") == 3);
  CHECK(object.get<double>("n") == 3.0);
  CHECK(object.get<double>("x") == 2.5);
  CHECK(object.get<std::string>("t") == "text");
  CHECK(object.get<bool>("b"));
  CHECK(object.get<std::vector<int64_t>>("l") == std::vector<int64_t>{1, 2});
  CHECK(object.get<std::vector<double>>("d") == std::vector<double>{0.5, 1.0});
  CHECK(object.get<std::vector<std::string>>("names") == std::vector<std::string>{"a", "b"});
  CHECK(object.object("o").get<int64_t>("k") == 1);
  CHECK(object.list("l").size() == 2);
  CHECK(object.whole("n", 3, 3) == 3);
  CHECK_FALSE(object.has("none"));
  CHECK_FALSE(object.has("absent"));
  CHECK(object.get<int64_t>("none", 7) == 7);
  CHECK_FALSE(object.optional<double>("absent"));
  CHECK(object.optional<double>("x") == 2.5);

  const auto says = [](const std::function<void()>& work, const std::string& text) {
    CHECK(object_complaint(work) == text);
  };
  says([&] { object.get<int64_t>("none"); }, "f.json: none is missing.");
  says([&] { object.get<int64_t>("absent"); }, "f.json: absent is missing.");
  says([&] { object.get<int64_t>("x"); }, "f.json: x must be a whole number; it is 2.5.");
  says([&] { object.get<int64_t>("big"); },
       "f.json: big is 18446744073709551615, which is too large.");
  says([&] { object.get<int64_t>("b"); }, "f.json: b must be a whole number; it is true.");
  says([&] { object.get<double>("t"); }, "f.json: t must be a number; it is string.");
  says([&] { object.get<bool>("n"); }, "f.json: n must be true or false; it is 3.");
  says([&] { object.get<std::string>("n"); }, "f.json: n must be a text; it is 3.");
  says([&] { object.get<std::vector<double>>("mixed"); },
       "f.json: mixed must be a list of numbers.");
  says([&] { object.get<std::vector<std::string>>("l"); }, "f.json: l must be a list of texts.");
  says([&] { object.object("l"); }, "f.json: l must be an object.");
  says([&] { object.list("o"); }, "f.json: o must be a list.");
  says([&] { object.object("o").get<int64_t>("n"); }, "f.json (o): n is missing.");
  says([&] { object.whole("n", 4, 5); }, "f.json: n is 3, it must be from 4 to 5.");
  says([&] { object.fail("it is odd"); }, "f.json: it is odd.");
  const auto list = parse_json("[]", "f.json");
  says([&] { JsonObject(list, "f.json, line 3"); }, "f.json, line 3 is not a JSON object.");
}

TEST_CASE("json object: whole numbers fit their type") {
  const auto json = parse_json(R"({"n": 2147483648, "least": -2147483648})", "f.json");
  const JsonObject object(json, "f.json");
  CHECK(object.get<int64_t>("n") == 2147483648);
  CHECK(object_complaint([&] { object.get<int>("n"); }) ==
        "f.json: n is 2147483648, which is too large.");
  CHECK(object.get<int>("least") == INT32_MIN);
}

}  // namespace
}  // namespace longspan
