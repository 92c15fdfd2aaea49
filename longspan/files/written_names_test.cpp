#include "longspan/files/written_names.h"

#include <doctest/doctest.h>

#include <filesystem>

#include "longspan/base/user_error.h"
#include "longspan/files/checksum_file.h"
#include "longspan/files/left_temporary.h"
#include "longspan/testing/temporary_folder.h"

namespace longspan {

namespace fs = std::filesystem;

TEST_CASE("written names: a folder is the program's own only with all that is in it") {
  const testing::TemporaryFolder place;
  const std::string folder = place / "part";
  CHECK(foreign_entry(folder) == "");  // no such folder
  for (const std::string name :
       {"config.json", "model-00001-of-00002.safetensors", "adapter_model.safetensors",
        "chat_template.jinja", "training_state.json",
        "training_state/part-00001-of-00004.safetensors", "checksums.json",
        "longspan_files.json"}) {
    place.write("part/" + name, "x");
  }
  place.write("part/" + temporary_name("model.safetensors"), "x");
  // Files of an older version that was killed, and a removed file that is still open.
  place.write("part/.model.safetensors.4711-0.tmp", "x");
  place.write("part/training_state/.part-00001-of-00004.safetensors.4711-1.tmp", "x");
  place.write("part/training_state/.nfs0123456789abcdef00000001", "x");
  CHECK(foreign_entry(folder) == "");
  CHECK(foreign_entry(place / "part/config.json") == "itself");
  for (const std::string name : {"thesis", "training_state/thesis", "model-1-of-x.safetensors",
                                 "training_state/deeper/config.json", ".hidden",
                                 ".thesis.4711-0.tmp", ".nfs-notes", ".nfsbad"}) {
    place.write("part/" + name, "years");
    CHECK_THROWS_WITH_AS(remove_own_folder(folder), doctest::Contains("is in the way"), UserError);
    CHECK(fs::exists(folder + "/" + name));
    CHECK(fs::exists(folder + "/config.json"));
    fs::remove_all(folder + "/" + name);
    fs::remove_all(folder + "/training_state/deeper");
  }
  place.write("years/thesis", "x");
  fs::create_symlink(place / "years", folder + "/training_state.json.d");
  CHECK(foreign_entry(folder) == "training_state.json.d");
  fs::remove(folder + "/training_state.json.d");
  fs::remove(folder + "/config.json");
  fs::create_symlink(place / "years/thesis", folder + "/config.json");
  CHECK(foreign_entry(folder) == "config.json");
  fs::remove(folder + "/config.json");
  remove_own_folder(folder);
  CHECK_FALSE(fs::exists(folder));
  // Links and folders of such names do not belong to a run.
  for (const char* name : {".model.safetensors.4711-0.tmp", ".nfs0123456789abcdef00000001"}) {
    place.write(std::string("part/") + name + "/thesis", "years");
    CHECK_THROWS_AS(remove_own_folder(folder), UserError);
    fs::remove_all(folder);
    fs::create_directories(folder);
    fs::create_symlink(place / "years/thesis", folder + "/" + name);
    CHECK_THROWS_AS(remove_own_folder(folder), UserError);
    fs::remove_all(folder);
  }
  fs::create_directory_symlink(place / "years", folder);
  CHECK_THROWS_AS(remove_own_folder(folder), UserError);
  CHECK(fs::exists(place / "years/thesis"));
}

TEST_CASE("written names: what the table of checksums names is the program's, too") {
  const testing::TemporaryFolder place;
  place.write("of_another_version.json", "x");
  CHECK(foreign_entry(place.path) == "of_another_version.json");
  place.write(".nfs0123456789abcdef00000001", "x");
  const ChecksumTable table = checksums_of(place.path, {});
  CHECK(table.size() == 1);
  write_checksum_file(place.path, table);
  CHECK(foreign_entry(place.path) == "");
}

TEST_CASE("written names: names below a folder") {
  for (const char* name : {"a", "a/b", "..a", "a..", ".a"})
    CHECK_MESSAGE(is_name_below(name), name);
  for (const char* name : {"", "/a", "a/", "a//b", "..", "../a", "a/../b", "a/..", ".", "./a"}) {
    CHECK_MESSAGE(!is_name_below(name), name);
  }
}

}  // namespace longspan
