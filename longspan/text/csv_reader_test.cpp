#include "longspan/text/csv_reader.h"

#include <doctest/doctest.h>

#include "longspan/base/user_error.h"
#include "longspan/testing/temporary_folder.h"

namespace longspan {
namespace {

/// "line: cell|cell" of each record; the error at the end.
std::vector<std::string> records_of(const std::string& text, int64_t most_bytes = kMaxLineBytes) {
  const testing::TemporaryFolder folder;
  std::vector<std::string> records;
  try {
    CsvReader reader(InputFile(folder.write("d.csv", text), "dataset"), most_bytes);
    for (CsvRecord record; reader.next(record);) {
      std::string shown = std::to_string(record.line) + (record.is_utf8 ? ": " : " (not UTF-8): ");
      for (size_t i = 0; i < record.cells.size(); ++i) {
        shown += (i == 0 ? "" : "|") + std::string(record.cells[i]);
      }
      records.push_back(shown);
    }
  } catch (const UserError& error) {
    records.emplace_back(error.what());
    records.back().erase(0, folder.path.size() + 1);
  }
  return records;
}

using Records = std::vector<std::string>;

}  // namespace

TEST_CASE("csv reader: cells, quotes, line ends") {
  CHECK(records_of("") == Records{});
  CHECK(records_of("\xef\xbb\xbf") == Records{});
  CHECK(records_of("\xef\xbb\xbf\"a\",b") == Records{"1: a|b"});
  CHECK(records_of("a,b\n\"c, \"\"d\"\"\",\n,\n") == Records{"1: a|b", "2: c, \"d\"|", "3: |"});
  CHECK(records_of("a\"b\",\"c\"d\"\n") == Records{"1: a\"b\"|cd\""});
  for (const char* end : {"\n", "\r\n", "\r"}) {
    const std::string text = std::string("a,b") + end + "c,d" + end + end + "e,f";
    CHECK(records_of(text) == Records{"1: a|b", "2: c|d", "4: e|f"});
    CHECK(records_of(text + end) == Records{"1: a|b", "2: c|d", "4: e|f"});
  }
  CHECK(records_of("a,\"b\r\nc\nd\re\"\nf\n") == Records{"1: a|b\r\nc\nd\re", "5: f"});
}

TEST_CASE("csv reader: lines of spaces and tabs are skipped; quoted ones are cells") {
  CHECK(records_of(" \t\na\n \n\t\r\n  b \n\"\"\n\" \"\n  ") ==
        Records{"2: a", "5:   b ", "6: ", "7:  "});
  CHECK(records_of(" \"a\"\n") == Records{"1:  \"a\""});
}

TEST_CASE("csv reader: a record may be larger than a part of the file") {
  const std::string line(70, 'x'), large(1'000'000, 'y');
  std::string lines;
  for (int i = 0; i < 10'000; ++i) lines += line + "\n";
  const Records records = records_of(lines + '"' + large + "\n\"," + large);
  REQUIRE(records.size() == 10'001);
  CHECK(records[9'999] == "10000: " + line);
  CHECK(records[10'000] == "10001: " + large + "\n|" + large);
  const std::string spaces(600'000, ' ');
  CHECK(records_of(spaces + "\n" + spaces + "a") == Records{"2: " + spaces + "a"});
}

TEST_CASE("csv reader: bytes that are not UTF-8, an open quote, a record that is too large") {
  CHECK(records_of("a,\xff\nb\n\xc3,\xa9\n\xc3\xa9\n") ==
        Records{"1 (not UTF-8): a|\xff", "2: b", "3 (not UTF-8): \xc3|\xa9", "4: \xc3\xa9"});
  const Records open = records_of("a\nb,\"c\nd\n");
  REQUIRE(open.size() == 2);
  CHECK(
      open[1].starts_with("d.csv, line 2: a quote (\") of the row that begins here is not closed"));
  for (const std::string& text :
       {std::string(200, 'a'), std::string(200, ' '), '"' + std::string(200, 'a') + '"'}) {
    const Records large = records_of("a\n" + text, 100);
    REQUIRE(large.size() == 2);
    CHECK(large[1].starts_with("d.csv, line 2: the row that begins here has more than 100 bytes"));
  }
}

}  // namespace longspan
