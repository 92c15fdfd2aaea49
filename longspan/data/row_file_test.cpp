#include "longspan/data/row_file.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "longspan/testing/dataset_folder.h"

namespace longspan {

namespace {

using Texts = std::vector<std::string>;

std::string a_row(const std::string& question) {
  return R"({"instruction": ")" + question + R"(", "output": "x"})";
}

/// A row over several lines, with braces in text.
std::string a_pretty_row(const std::string& question) {
  return "{\n  \"instruction\": \"" + question +
         "\",\n  \"output\": \"a } \\\" { b\",\n  \"list\": [\n    {\"c\": 1}\n  ]\n}";
}

std::string utf16(const std::string& ascii, bool big_endian) {
  std::string text;
  for (const char c : ascii) text += big_endian ? std::string{'\0', c} : std::string{c, '\0'};
  return text;
}

}  // namespace

TEST_CASE("files of rows: the layouts of JSON") {
  const DatasetFolder folder;
  folder.info(
      R"({"file_name": "d.json", "columns": {"prompt": "instruction", "response": "output"}})");
  const auto read = [&](const std::string& text) {
    folder.write("d.json", text);
    return flat(folder.rows());
  };
  const Texts both = {"u=a;a=x;", "u=b;a=x;"};
  const std::string list = "[" + a_row("a") + ",\n" + a_row("b") + "]";
  CHECK(read(list) == both);
  CHECK(read(a_row("a") + "\n\n" + a_row("b")) == both);
  CHECK(read("{\"data\": " + list + "}") == both);
  CHECK(read("\xef\xbb\xbf{\n  \"version\": 1,\n  \"data\": " + list + "\n}\n") == both);
  CHECK(read(a_row("a") + a_row("b")) == both);
  CHECK(read(a_row("a")) == Texts{"u=a;a=x;"});

  const Texts pretty = {"u=a;a=a } \" { b;", "u=b;a=a } \" { b;"};
  CHECK(read(a_pretty_row("a") + "\n" + a_pretty_row("b") + "\n") == pretty);
  CHECK(read("\xef\xbb\xbf" + a_pretty_row("a") + a_pretty_row("b")) == pretty);
  CHECK_SAYS(folder.rows()[1].source, "d.json, line 7");
}

TEST_CASE("files of rows: a column may be called data") {
  const DatasetFolder folder;
  folder.info(
      R"({"file_name": "d.json", "formatting": "sharegpt", "columns": {"messages": "data"}})");
  folder.write("d.json",
               R"({"data": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]})");
  CHECK(flat(folder.rows()) == Texts{"u=a;a=b;"});
}

TEST_CASE("files of rows: csv") {
  const DatasetFolder folder;
  folder.info(
      R"({"file_name": "d.csv", "columns": {"prompt": "instruction", "response": "output"}})");
  folder.write("d.csv", "\xef\xbb\xbfinstruction,output\r\na,x\r\n\"b, c\",x\r\n");
  CHECK(flat(folder.rows()) == Texts{"u=a;a=x;", "u=b, c;a=x;"});
  CHECK_SAYS(folder.rows()[1].source, "d.csv, line 3");
  folder.write("d.csv", "");
  CHECK_SAYS(folder.complaint(), "there are no rows in");
}

TEST_CASE("files of rows: UTF-16 is refused by name, with the command that converts it") {
  const DatasetFolder folder;
  folder.info(R"({"file_name": "d.jsonl"})");
  const std::string row = a_row("a") + "\n";
  for (const std::string& text : {"\xff\xfe" + utf16(row, false), "\xfe\xff" + utf16(row, true),
                                  utf16(row, false), utf16(row, true)}) {
    folder.write("d.jsonl", text);
    CHECK_SAYS(folder.complaint(), "d.jsonl is UTF-16");
    CHECK_SAYS(folder.complaint(), "iconv -f UTF-16");
  }
  folder.info(R"({"file_name": "d.csv"})");
  folder.write("d.csv", "\xff\xfe" + utf16("instruction,output\na,b\n", false));
  CHECK_SAYS(folder.complaint(), "d.csv is UTF-16");
  folder.write("dataset_info.json",
               "\xff\xfe" + utf16(R"({"d": {"file_name": "d.jsonl"}})", false));
  CHECK_SAYS(folder.complaint(), "dataset_info.json is UTF-16");
}

TEST_CASE("files of rows: a broken one is that row's own fault") {
  const DatasetFolder folder;
  folder.info(R"({"file_name": "d.json"})");
  const auto complaint = [&](const std::string& text) {
    folder.write("d.json", text);
    return folder.complaint();
  };
  // A broken first line of many, and a broken object of several lines.
  CHECK_SAYS(complaint("{\"instruction\": 'a'}\n" + a_row("a") + "\n" + a_row("b")),
             "dataset d: 1 of 3 rows cannot be used:\n  " + folder.path() +
                 "/d.json, line 1: broken JSON");
  const std::string broken = "{\n  \"instruction\": \"a\",\n  \"output\": \"b\",\n}\n";
  CHECK_SAYS(complaint(a_pretty_row("a") + "\n" + broken + a_pretty_row("b")),
             "dataset d: 1 of 3 rows cannot be used");
  CHECK_SAYS(complaint(a_pretty_row("a") + "\n{\n\"instruction\": "), "line 9: broken JSON");
}

TEST_CASE("files of rows: JSON that is too deep, and numbers beyond all, are one row's") {
  const DatasetFolder folder;
  folder.info(
      R"({"file_name": "d.json", "columns": {"prompt": "instruction", "response": "output"}})");
  const auto complaint = [&](const std::string& text) {
    folder.write("d.json", text);
    return folder.complaint();
  };
  const std::string deep(200'000, '[');
  const std::string too_deep = "more than 512 lists and objects within each other";
  CHECK_SAYS(complaint(deep), "d.json, line 1: " + too_deep);
  CHECK_SAYS(complaint(a_row("a") + "\n" + R"({"x": )" + deep), "d.json, line 2: " + too_deep);
  CHECK_SAYS(complaint("{\n\"x\":\n" + deep), "d.json, line 3: " + too_deep);
  CHECK_SAYS(complaint("[" + a_row("a") + ",\n{\"x\": 1e999}]"),
             "d.json, line 2: the number 1e999");
  CHECK_SAYS(complaint(a_row("a") + "\n{\"x\": 1e999}"), "d.json, line 2: the number 1e999");
  CHECK_SAYS(complaint("{\"data\": [{\"x\": -1e999}]}"), "the number -1e999");
}

}  // namespace longspan
