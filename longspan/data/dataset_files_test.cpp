#include "longspan/data/dataset_files.h"

#include <doctest/doctest.h>

#include <filesystem>

#include "longspan/testing/dataset_folder.h"

namespace longspan {

namespace {

/// The names of the files that are found, or the error.
std::string found(const DatasetFolder& folder, const std::string& name) {
  try {
    const DatasetFiles files = find_dataset_files(std::filesystem::path(folder.path()) / name);
    std::string names;
    for (const std::string& file : files.files) {
      names += std::filesystem::path(file).filename().string() + ";";
    }
    return names + (files.note.empty() ? "" : " " + files.note);
  } catch (const UserError& error) {
    return error.what();
  }
}

}  // namespace

TEST_CASE("files of a data set: a file, a folder, a pattern") {
  const DatasetFolder folder;
  for (const char* name : {"b/2.jsonl", "b/10.json.gz", "b/.hidden", "b/README.md", "c/x.txt",
                           "c/y.csv", "d/e/x.txt", "f/[1].json", "f/1.json", "g/x.orc"}) {
    folder.write(name, "");
  }
  CHECK(found(folder, "b/2.jsonl") == "2.jsonl;");
  CHECK_SAYS(found(folder, "b"), "10.json.gz;2.jsonl; not read in the folder");
  CHECK_SAYS(found(folder, "b"), ": README.md");
  CHECK(found(folder, "b/*.json*") == "10.json.gz;2.jsonl;");
  CHECK(found(folder, "*/[x]*.txt") == "x.txt;");
  CHECK(found(folder, "f/[1].json") == "[1].json;");  // a file's own name comes first
  CHECK(found(folder, "f/[0-9].json") == "1.json;");
  CHECK_SAYS(found(folder, "c"), "x.txt and y.csv are files of different kinds");
  CHECK_SAYS(found(folder, "d"), "has a folder e; name the folder with the files, or a pattern");
  CHECK_SAYS(found(folder, "g"), "x.orc: such files are not read");
  CHECK_SAYS(found(folder, "z*"), "no file fits the pattern");
  CHECK_SAYS(found(folder, "z"), "there is no file");
  CHECK(!has_dataset_files(std::filesystem::path(folder.path()) / "z*"));
  CHECK(is_path_of_rows("a/b"));
  CHECK(is_path_of_rows("a.parquet"));
  CHECK(is_path_of_rows("a*"));
  CHECK(!is_path_of_rows("alpaca_en"));
}

}  // namespace longspan
