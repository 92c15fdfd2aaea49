#include "longspan/data/csv_rows.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "longspan/testing/dataset_folder.h"

namespace longspan {

namespace {

using Texts = std::vector<std::string>;

/// The rows as JSON, refusals by their line, notes.
Texts read_csv(const std::string& text) {
  const testing::TemporaryFolder folder;
  Texts read;
  const std::string path = folder.write("d.csv", text);
  const auto without_folder = [&](const std::string& sentence) {
    return sentence.substr(folder.path.size() + 1);
  };
  for_each_csv_row(path, {[&](const nlohmann::ordered_json& row, const std::string& place) {
                            CHECK(place.starts_with(path + ", line "));
                            read.push_back(row.dump());
                            return true;
                          },
                          [&](const std::string& problem) {
                            read.push_back(without_folder(problem));
                            return true;
                          },
                          [&](const std::string& note) { read.push_back(without_folder(note)); }});
  return read;
}

std::string error_of_csv(const std::string& text) {
  try {
    read_csv(text);
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

const char* kEntry =
    R"({"file_name": "d.csv", "columns": {"prompt": "q", "query": "i", "response": "a"}})";

}  // namespace

TEST_CASE("csv rows: names of columns, null for empty and missing cells") {
  CHECK(read_csv("a,,b\nx,1,\n\ny\n") ==
        Texts{R"({"a":"x","Unnamed: 1":1,"b":null})", R"({"a":"y","Unnamed: 1":null,"b":null})"});
  CHECK(read_csv("") == Texts{});
  CHECK(read_csv("a,b\n") == Texts{});
  CHECK_SAYS(error_of_csv("\na,b,a\n1,2,3\n"), "d.csv, line 2: two columns are called a");
  CHECK_SAYS(error_of_csv("a,\xff\n"), "d.csv, line 1: this is not UTF-8 text");
  CHECK_SAYS(error_of_csv(std::string(1000, ',') + "\n"),
             "the file has 1001 columns; at most 1000");
}

TEST_CASE("csv rows: a column of numbers alone has numbers, of true and false booleans") {
  CHECK(read_csv("a,b,c,d\n1,1,TRUE,true\n007,x,false,1\n,2,,\n\" -2.5e1 \",3,True,x\n") ==
        Texts{R"({"a":1,"b":"1","c":true,"d":"true"})", R"({"a":7,"b":"x","c":false,"d":"1"})",
              R"({"a":null,"b":"2","c":null,"d":null})",
              R"({"a":-25.0,"b":"3","c":true,"d":"x"})"});
  const auto is_text = [](const std::string& cell) {
    return read_csv("a,b\n\"" + cell + "\",x\n").at(0).starts_with("{\"a\":\"");
  };
  for (const char* number : {"5", " 5", "5\t", "\v5\f", "+5", "-0", ".5", "5.", "1.e5", "+.5E-3",
                             "1e400", "1e-400", "18446744073709551616", "inf", "-Infinity"}) {
    CAPTURE(number);
    CHECK_FALSE(is_text(number));
  }
  for (const char* text : {"--5",
                           "+-5",
                           "- 5",
                           "1e",
                           "1e+",
                           "e5",
                           "1_000",
                           "0x10",
                           "1,5",
                           "1 2",
                           "1e5.0",
                           ".",
                           "-",
                           "infin",
                           " True",
                           "\xc2\xa0"
                           "5",
                           "NAN",
                           "none",
                           " NA",
                           " inf"}) {
    CAPTURE(text);
    CHECK(is_text(text));
  }
  CHECK_FALSE(is_text("tRuE"));
}

TEST_CASE("csv rows: the type of a column holds for 10,000 rows") {
  std::string numbers = "a,b\n";
  for (int i = 0; i < 9'999; ++i) numbers += "1,x\n";
  const Texts texts = read_csv(numbers + "y,x\n2,x\n");
  REQUIRE(texts.size() == 10'001);
  CHECK(texts[0] == R"({"a":"1","b":"x"})");
  CHECK(texts[10'000] == R"({"a":2,"b":"x"})");
  const Texts typed = read_csv(numbers + "2,x\ny,x\n3,x\n");
  REQUIRE(typed.size() == 10'002);
  CHECK(typed[0] == R"({"a":1,"b":"x"})");
  CHECK(typed[9'999] == R"({"a":2,"b":"x"})");
  CHECK(typed[10'001] == R"({"a":"3","b":"x"})");
}

TEST_CASE("csv rows: texts for no value are null, and counted in a note") {
  const Texts read = read_csv("a,b\nNA,x\n\"None\",null\nna,<NA>\n");
  REQUIRE(read.size() == 4);
  CHECK(read[0] == R"({"a":null,"b":"x"})");
  CHECK(read[1] == R"({"a":null,"b":null})");
  CHECK(read[2] == R"({"a":"na","b":null})");
  CHECK(read[3] ==
        "d.csv: cells with NA, None, null, nan or the like are read as empty, as by pandas: a (2 "
        "cells, first in line 2), b (2 cells, first in line 3)");
}

TEST_CASE("csv rows: an unusable row is named with its line") {
  CHECK(read_csv(std::string("a,b\n1,2,3\n\xff,2\nx,\"y\nz\"\n") + '\0' + ",2\nx,,\n") ==
        Texts{"d.csv, line 2: the row has 3 cells, but the first line names 2 columns; put a cell "
              "with commas into quotes (\")",
              "d.csv, line 3: this is not UTF-8 text", R"({"a":"x","b":"y\nz"})",
              "d.csv, line 6: a cell has a NUL character",
              "d.csv, line 7: the row has 3 cells, but the first line names 2 columns; put a cell "
              "with commas into quotes (\")"});
}

TEST_CASE("csv rows: conversations, with reasons for values that are no text") {
  const DatasetFolder folder;
  folder.info(kEntry);
  folder.write("d.csv", "id,q,i,a\r\n1,\"a, \"\"b\"\"\",c,d\r\n2,e,,5\r\n3,NA,\"f\r\ng\",h\r\n");
  CHECK(flat(folder.rows()) == Texts{"u=a, \"b\"\nc;a=d;", "u=e;a=5;", "u=f\r\ng;a=h;"});
  CHECK(has(folder.rows()[2].source, "d.csv, line 4"));
  std::vector<std::string> notes;
  read_conversations(folder.config().data, stage_of(folder.config().method), 42, "d", notes);
  REQUIRE(notes.size() == 2);
  CHECK_SAYS(notes[0], "dataset d: " + folder.path() + "/d.csv: cells with NA");
  CHECK(notes[1] == "dataset d: 1 key is not read: id (3 rows)");

  folder.write("d.csv", "q,i,a\nx,,5\ny,,6\n");
  CHECK_SAYS(
      folder.complaint(),
      "d.csv, line 2: a is not text but number; a csv column whose cells are all numbers has "
      "no texts: give such a file as jsonl, with the values in quotes");
  folder.write("d.csv", "q,i,a\nx,,y\nz,,None\n");
  CHECK_SAYS(folder.complaint(),
             "d.csv, line 3: the row has no answer (a is empty; an empty cell, NA, None, null, nan "
             "or the like is no value). Nothing");
  folder.write("d.csv", "q,i,a\nx,,y\nz,,y,w\n");
  CHECK_SAYS(folder.complaint(), "1 of 2 rows cannot be used:\n  " + folder.path() +
                                     "/d.csv, line 3: the row has 4 cells");
  Config config = folder.config();
  config.data.on_bad_row = "skip";
  CHECK(flat(read_conversations(config.data, stage_of(config.method), 42, "d")) ==
        Texts{"u=x;a=y;"});
  folder.write("d.csv", "q,i,a\nx,,\"y\nz,,y\n");
  CHECK_SAYS(folder.complaint(), "d.csv, line 2: a quote (\") of the row that begins here");
}

}  // namespace longspan
