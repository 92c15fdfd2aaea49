#include "longspan/text/yaml.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "longspan/base/user_error.h"

namespace longspan {
namespace {

nlohmann::json parse(const std::string& yaml) {
  return nlohmann::json::parse(yaml_to_json(yaml, "run.yaml"));
}

std::string error_of(const std::string& yaml) {
  try {
    yaml_to_json(yaml, "run.yaml");
  } catch (const UserError& error) {
    return error.what();
  }
  return "nothing thrown";
}

}  // namespace

TEST_CASE("yaml: scalars are typed") {
  const auto j = parse(R"(
a: 1.0e-5
b: 1e-5
c: 5.0e-5
d: true
e: False
f: null
g: ~
h:
i: 9007199254740993
j: 18446744073709551615
k: -3
l: "1e-5"
m: 'true'
n: path/to:x
o: 0.1
p: none
q: 2026-01-02
r: .inf
)");
  CHECK(j["a"].is_number_float());
  CHECK(j["a"] == 1e-5);
  CHECK(j["b"].is_number_float());
  CHECK(j["b"] == 1e-5);
  CHECK(j["c"] == 5e-5);
  CHECK(j["d"] == true);
  CHECK(j["e"] == false);
  CHECK(j["f"].is_null());
  CHECK(j["g"].is_null());
  CHECK(j["h"].is_null());
  CHECK(j["i"].get<int64_t>() == 9007199254740993);
  CHECK(j["j"].get<uint64_t>() == 18446744073709551615u);
  CHECK(j["k"] == -3);
  CHECK(j["l"] == "1e-5");
  CHECK(j["m"] == "true");
  CHECK(j["n"] == "path/to:x");
  CHECK(j["o"] == 0.1);
  CHECK(j["p"] == "none");
  CHECK(j["q"] == "2026-01-02");
  CHECK(j["r"] == ".inf");
  CHECK(parse("[yes, No, on, OFF]") == nlohmann::json::parse("[true, false, true, false]"));
}

TEST_CASE("yaml: lists, maps, comments, block text") {
  const auto j = parse(
      "### model\nlist: [1, two, {x: z}]\ndeep:\n  - a # note\n  - b\n"
      "text: |\n  one\n  two\n3: number key\n");
  CHECK(j["list"] == nlohmann::json::parse(R"([1, "two", {"x": "z"}])"));
  CHECK(j["deep"] == nlohmann::json::parse(R"(["a", "b"])"));
  CHECK(j["text"] == "one\ntwo\n");
  CHECK(j["3"] == "number key");
  CHECK(parse("on: 1") == nlohmann::json::parse(R"({"on": 1})"));
  CHECK(parse("").is_null());
  CHECK(parse("# nothing\n").is_null());
  CHECK(parse("1e-3") == 1e-3);
}

TEST_CASE("yaml: broken text says file, line and column") {
  for (const std::string broken : {"a: 1\nb: [1, 2\nc: 3\n", "a: 1\n\tb: 2\n", "a: 1\na: 2\n",
                                   "a: \"unclosed\n", "a: 1\nb: c: d\n"}) {
    const std::string message = error_of(broken);
    CAPTURE(broken);
    CAPTURE(message);
    CHECK(message.rfind("run.yaml, line ", 0) == 0);
    CHECK(message.find(", column ") != std::string::npos);
  }
  CHECK(error_of("a: 1\na: 2\n").ends_with("duplicate mapping key: a"));
  CHECK(error_of("a: 1\nb: \xff\n").rfind("run.yaml, line 2", 0) == 0);
}

TEST_CASE("yaml: errors speak of YAML, not of the program that reads it") {
  const auto times = [](const std::string& text, size_t count) {
    std::string all;
    for (size_t i = 0; i < count; ++i) all += text;
    return all;
  };
  const std::string too_deep = "nested deeper than 512 levels";
  std::string bombs = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n";
  for (int i = 1; i < 9; ++i) {
    const std::string before = "*a" + std::to_string(i - 1);
    bombs += "a" + std::to_string(i) + ": &a" + std::to_string(i) + " [" + times(before + ", ", 8) +
             before + "]\n";
  }
  std::string block;
  for (size_t i = 0; i < 600; ++i) block += std::string(i, ' ') + "a:\n";
  const std::vector<std::pair<std::string, std::string>> cases = {
      {times("[", 200'000), too_deep},
      {times("[", 600) + times("]", 600), too_deep},
      {times("{a: ", 200'000), too_deep},
      {times("- ", 200'000), too_deep},
      {block, too_deep},
      {bombs, "unfold"},
      {"a: *b\n", "(*name)"},
      {"a: 1\n---\nb: 2\n", "a second document begins"},
      {"<<: 3\na: 1\n", "a merge (<<) wants a mapping"},
      {"? [a, b]\n: 1\n", "a key is wanted that is plain text"},
      {"a: 1\na: 2\n", "duplicate mapping key: a"},
  };
  for (const auto& [yaml, part] : cases) {
    CAPTURE(yaml.substr(0, 60));
    const std::string message = error_of(yaml);
    CAPTURE(message);
    CHECK(message.rfind("run.yaml", 0) == 0);
    CHECK(message.find(part) != std::string::npos);
    for (const char* advice :
         {"udget", "Policy", "Options", "from_str", "Option<", "deserialize"}) {
      CHECK(message.find(advice) == std::string::npos);
    }
  }
  // 300 levels are fine.
  CHECK(parse(times("[", 300) + times("]", 300)).is_array());
}

}  // namespace longspan
