#include "longspan/data/row_file.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

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

TEST_CASE("files of rows: compressed by gzip and zstd") {
  const DatasetFolder folder;
  // {"instruction": "a", "output": "x"}
  constexpr std::string_view kGzip(
      "\x1f\x8b\x08\x00\x00\x00\x00\x00\x02\x03\xab\x56\xca\xcc\x2b\x2e\x29\x2a\x4d\x2e\xc9\xcc"
      "\xcf\x53\xb2\x52\x50\x4a\x54\xd2\x51\x50\xca\x2f\x2d\x29\x28\x2d\x01\x71\x2b\x94\x6a\xb9"
      "\x00\x80\xf1\x45\xf7\x24\x00\x00\x00",
      53);
  constexpr std::string_view kZstd(
      "\x28\xb5\x2f\xfd\x20\x24\x21\x01\x00\x7b\x22\x69\x6e\x73\x74\x72\x75\x63\x74\x69\x6f\x6e"
      "\x22\x3a\x20\x22\x61\x22\x2c\x20\x22\x6f\x75\x74\x70\x75\x74\x22\x3a\x20\x22\x78\x22\x7d"
      "\x0a",
      45);
  // A list of 40 such objects.
  constexpr int64_t kListBytes = 1441;
  constexpr std::string_view kGzipList(
      "\x1f\x8b\x08\x00\x00\x00\x00\x00\x02\x03\x8b\xae\x56\xca\xcc\x2b\x2e\x29\x2a\x4d\x2e\xc9"
      "\xcc\xcf\x53\xb2\x52\x50\x4a\x54\xd2\x51\x50\xca\x2f\x2d\x29\x28\x2d\x01\x71\x2b\x94\x6a"
      "\x75\x46\xd5\x8c\xaa\x19\x55\x33\xaa\x66\x54\x0d\xdd\xd5\xc4\x02\x00\x63\xc4\x41\xcb\xa1"
      "\x05\x00\x00",
      69);
  for (const auto& [name, bytes] : {std::pair("d.jsonl.gz", kGzip), {"d.json.zst", kZstd}}) {
    folder.info(fmt::format(R"({{"file_name": "{}"}})", name));
    folder.write(name, std::string(bytes));
    CHECK(flat(folder.rows()) == Texts{"u=a;a=x;"});
    CHECK_SAYS(folder.rows()[0].source, fmt::format("{}, line 1", name));
    // Several parts, one behind the other.
    folder.write(name, std::string(bytes) + std::string(bytes));
    CHECK(flat(folder.rows()) == Texts{"u=a;a=x;", "u=a;a=x;"});
    folder.write(name, std::string(bytes.substr(0, bytes.size() - 2)));
    CHECK_SAYS(folder.complaint(), "the compressed data is broken, or ends early");
    folder.write(name, R"({"instruction": "a", "output": "x"})");
    CHECK_SAYS(folder.complaint(), "the compressed data is broken, or ends early");
  }
  // A limit of files that are read whole counts decompressed bytes.
  const std::string path = folder.write("w.json.gz", std::string(kGzipList));
  RowTaker taker{.take = [](const nlohmann::ordered_json&, const std::string&) { return true; },
                 .refuse = [](const std::string&) { return true; },
                 .note = [](const std::string&) {},
                 .most_whole_bytes = kListBytes};
  CHECK(for_each_row(path, /*unwraps_data=*/false, taker));
  --taker.most_whole_bytes;
  CHECK_THROWS_WITH_AS(for_each_row(path, /*unwraps_data=*/false, taker),
                       doctest::Contains("gzip -dc"), UserError);
  folder.info(R"({"file_name": "d.parquet.gz"})");
  folder.write("d.parquet.gz", std::string(kGzip));
  CHECK_SAYS(folder.complaint(), "d.parquet.gz: such files are not read");
}

TEST_CASE("files of rows: parquet") {
  const DatasetFolder folder;
  folder.info(R"({"file_name": "d.parquet"})");
  // A record: instruction "a", output "x".
  constexpr std::string_view kParquet(
      "\x50\x41\x52\x31\x15\x00\x15\x16\x15\x16\x2c\x15\x02\x15\x00\x15\x06\x15\x06\x1c\x00\x00"
      "\x00\x02\x00\x00\x00\x02\x01\x01\x00\x00\x00\x61\x15\x00\x15\x16\x15\x16\x2c\x15\x02\x15"
      "\x00\x15\x06\x15\x06\x1c\x00\x00\x00\x02\x00\x00\x00\x02\x01\x01\x00\x00\x00\x78\x15\x04"
      "\x19\x3c\x35\x00\x18\x06\x73\x63\x68\x65\x6d\x61\x15\x04\x00\x15\x0c\x25\x02\x18\x0b\x69"
      "\x6e\x73\x74\x72\x75\x63\x74\x69\x6f\x6e\x25\x00\x4c\x1c\x00\x00\x00\x15\x0c\x25\x02\x18"
      "\x06\x6f\x75\x74\x70\x75\x74\x25\x00\x4c\x1c\x00\x00\x00\x16\x02\x19\x1c\x19\x2c\x26\x00"
      "\x1c\x15\x0c\x19\x25\x06\x00\x19\x18\x0b\x69\x6e\x73\x74\x72\x75\x63\x74\x69\x6f\x6e\x15"
      "\x00\x16\x02\x16\x3c\x16\x3c\x26\x08\x49\x1c\x15\x00\x15\x00\x15\x02\x00\x3c\x16\x02\x19"
      "\x06\x19\x26\x00\x02\x00\x00\x00\x26\x00\x1c\x15\x0c\x19\x25\x06\x00\x19\x18\x06\x6f\x75"
      "\x74\x70\x75\x74\x15\x00\x16\x02\x16\x3c\x16\x3c\x26\x44\x49\x1c\x15\x00\x15\x00\x15\x02"
      "\x00\x3c\x16\x02\x19\x06\x19\x26\x00\x02\x00\x00\x00\x16\x78\x16\x02\x26\x08\x16\x78\x00"
      "\x28\x20\x70\x61\x72\x71\x75\x65\x74\x2d\x63\x70\x70\x2d\x61\x72\x72\x6f\x77\x20\x76\x65"
      "\x72\x73\x69\x6f\x6e\x20\x32\x36\x2e\x30\x2e\x31\x19\x2c\x1c\x00\x00\x1c\x00\x00\x00\xdd"
      "\x00\x00\x00\x50\x41\x52\x31",
      293);
  folder.write("d.parquet", std::string(kParquet));
  CHECK(flat(folder.rows()) == Texts{"u=a;a=x;"});
  CHECK_SAYS(folder.rows()[0].source, "d.parquet, row 1");
  for (size_t size = 0; size < kParquet.size(); size += 7) {
    folder.write("d.parquet", std::string(kParquet.substr(0, size)));
    CHECK_SAYS(folder.complaint(), "d.parquet: the file is broken");
  }
}

}  // namespace longspan
