#include "longspan/files/file_list.h"

#include <doctest/doctest.h>

#include <filesystem>

#include "longspan/testing/temporary_folder.h"

namespace longspan {

namespace fs = std::filesystem;

TEST_CASE("file list: what was listed goes, what is new, changed, linked or the user's stays") {
  const testing::TemporaryFolder place;
  for (const char* name : {"config.json", "chat_template.jinja", "added_tokens.json", "vocab.json",
                           "merges.txt", "model-00002-of-00002.safetensors"}) {
    place.write(name, "first");
  }
  write_file_list(place.path);
  const FileList list = read_file_list(place.path);
  CHECK(list.size() == 6);
  CHECK(list.contains("config.json"));
  CHECK_FALSE(list.contains(kFileList));
  place.write("notes.txt", "mine");
  place.write("added_tokens.json", "changed by hand");
  fs::remove(place / "vocab.json");
  fs::create_symlink(place / "notes.txt", place / "vocab.json");
  fs::remove(place / "merges.txt");
  place.write("merges.txt/below", "mine");
  remove_listed(place.path, list, {"config.json"});
  CHECK(fs::exists(place / "config.json"));
  CHECK_FALSE(fs::exists(place / "chat_template.jinja"));
  CHECK_FALSE(fs::exists(place / "model-00002-of-00002.safetensors"));
  CHECK_FALSE(fs::exists(place / "added_tokens.json"));
  CHECK(fs::exists(place / "added_tokens.json.kept"));
  CHECK(fs::exists(place / "notes.txt"));
  CHECK(fs::is_symlink(place / "vocab.json"));
  CHECK(fs::exists(place / "merges.txt/below"));
}

TEST_CASE("file list: one that no run has written lists nothing") {
  const testing::TemporaryFolder place;
  CHECK(read_file_list(place.path).empty());
  for (const char* text : {"", "[", "[]", "{}", R"({"format": 1})", R"({"format": 2, "files": {}})",
                           R"({"format": 1, "files": {"../thesis": {"size": 5}}})",
                           R"({"format": 1, "files": {"/thesis": {"size": 5}}})",
                           R"({"format": 1, "files": {"a/b": {"size": 5}}})",
                           R"({"format": 1, "files": {"a": {"size": 1e999}}})",
                           R"({"format": 1, "files": {"a": {"size": 5, "xxh64": "x"}}})"}) {
    place.write(kFileList, text);
    CHECK_MESSAGE(read_file_list(place.path).empty(), text);
  }
  fs::remove(place / kFileList);
  place.write("other", R"({"format": 1, "files": {"a": {"size": 5}}})");
  fs::create_symlink(place / "other", place / kFileList);
  CHECK(read_file_list(place.path).empty());
}

TEST_CASE("file list: renamed to a name that no file has") {
  const testing::TemporaryFolder place;
  for (const char* content : {"1", "2", "3"}) {
    place.write("a", content);
    rename_to_kept(place.path, "a");
  }
  for (const char* name : {"a.kept", "a.kept-2", "a.kept-3"}) CHECK(fs::exists(place / name));
  CHECK_FALSE(fs::exists(place / "a"));
}

}  // namespace longspan
