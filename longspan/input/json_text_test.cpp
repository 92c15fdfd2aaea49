#include "longspan/input/json_text.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <functional>
#include <nlohmann/json.hpp>

#include "longspan/base/user_error.h"
#include "longspan/testing/temporary_folder.h"

namespace longspan {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

std::string repeated(const std::string& text, int times) {
  std::string all;
  for (int i = 0; i < times; ++i) all += text;
  return all;
}

/// Returns the message of parse_json(). parse_ordered_json() and the variants with try_ must agree.
std::string text_complaint(const std::string& text, int64_t first_line = 1) {
  const auto said = [&](const auto& parse) -> std::string {
    try {
      parse(text, "f.json", first_line);
    } catch (const UserError& error) {
      return error.what();
    }
    return "(accepted)";
  };
  const std::string first = said(parse_json);
  CHECK(first == said(parse_ordered_json));
  const bool accepted = first == "(accepted)";
  CHECK(try_parse_json(text).has_value() == accepted);
  CHECK(try_parse_ordered_json(text).has_value() == accepted);
  return first;
}

TEST_CASE("json text: one limit of depth") {
  const auto lists = [](int depth) { return repeated("[", depth) + repeated("]", depth); };
  const auto objects = [](int depth) {
    return repeated(R"({"a":)", depth) + "1" + repeated("}", depth);
  };
  CHECK(text_complaint(lists(kMaxJsonDepth)) == "(accepted)");
  CHECK(text_complaint(objects(kMaxJsonDepth)) == "(accepted)");
  const std::string deep = "more than 512 lists and objects within each other";
  for (const int depth : {kMaxJsonDepth + 1, 8'000, 200'000}) {
    CHECK(text_complaint(lists(depth)) == "f.json, line 1: " + deep);
    CHECK(text_complaint(objects(depth)) == "f.json, line 1: " + deep);
    CHECK(text_complaint(repeated("[", depth)) == "f.json, line 1: " + deep);
    CHECK(text_complaint("{\"a\": \"[\\\"[\",\n\"b\":\n" + lists(depth) + "}", 10) ==
          "f.json, line 12: " + deep);
  }
  // Brackets in texts add no depth, nor do neighbouring lists.
  CHECK(text_complaint("\"" + repeated("[", 10'000) + "\"") == "(accepted)");
  CHECK(text_complaint("[" + repeated("[],", 10'000) + "[]]") == "(accepted)");
  // An accepted value can be copied, printed and freed.
  const json value = parse_json(lists(kMaxJsonDepth), "f.json");
  const json copy = value;
  CHECK(copy.dump() == lists(kMaxJsonDepth));
}

TEST_CASE("json text: errors with file and line") {
  CHECK(text_complaint("{\"a\": 1,\n\"b\": }")
            .starts_with("f.json, line 2: broken JSON: syntax error"));
  CHECK(text_complaint("", 7).starts_with("f.json, line 7: broken JSON: "));
  CHECK(text_complaint("[1] 2").starts_with("f.json, line 1: broken JSON: "));
  CHECK(text_complaint("\"\xff\"").starts_with("f.json, line 1: broken JSON: "));
  CHECK(text_complaint("[1,\n-1e999]") ==
        "f.json, line 2: the number -1e999 is beyond what a double holds");
  CHECK(text_complaint("{\"a\":\n{\"b\": 1" + repeated("0", 400) + "}}", 5)
            .starts_with("f.json, line 6: the number 100000000"));
  CHECK(text_complaint("[1e308, 1e-999, 18446744073709551616]") == "(accepted)");
}

TEST_CASE("json text: the same values as the library's own parser builds") {
  std::string keys;
  for (int i = 0; i < 200; ++i) keys += fmt::format("\"k{}\": {},", 7 * i % 100, i);
  for (const std::string& text :
       {std::string("null"), std::string("-3"), std::string("18446744073709551615"),
        std::string(R"("a\u00fc\n")"), std::string("[]"), std::string("{}"),
        std::string(R"({"b": [1, 2.5, true, {"x": null}], "a": {"c": {}, "b": []}, "b2": "x"})"),
        std::string(R"({"a": [1], "a": {"b": 2}})"),
        "{" + keys + "\"end\": [" + "{" + keys + "\"k\": 1}]}"}) {
    CAPTURE(text);
    CHECK(parse_json(text, "f.json") == json::parse(text));
    CHECK(parse_ordered_json(text, "f.json").dump() == ordered_json::parse(text).dump());
    CHECK(try_parse_json(text) == json::parse(text));
  }
}

TEST_CASE("json text: keys that must be single") {
  const auto said = [](const std::string& text) -> std::string {
    try {
      parse_json_of_single_keys(text, "f.json");
    } catch (const UserError& error) {
      return error.what();
    }
    return "(accepted)";
  };
  CHECK(said(R"({"a": 1, "b": {"c": 1, "c": 2}})") == "(accepted)");
  CHECK(said(R"({"a": 1, "b": 2, "a": 3})") == "f.json: \"a\" is given twice; keep one");
  CHECK(said(R"({"a": 1, "b": })").starts_with("f.json, line 1: broken JSON"));
}

TEST_CASE("json text: files") {
  const testing::TemporaryFolder place;
  const std::string path = place.write("f.json", "\xef\xbb\xbf{\"b\": 1,\n \"a\": 2}");
  CHECK(read_json_file(path, "test file") == json{{"a", 2}, {"b", 1}});
  CHECK(read_ordered_json_file(path, "test file").dump() == R"({"b":1,"a":2})");
  CHECK_THROWS_AS(read_json_file(path, "test file", 5), UserError);
  CHECK_THROWS_AS(read_json_file(place / "gone", "test file"), UserError);
}

}  // namespace
}  // namespace longspan
