#include "longspan/input/model_files.h"

#include <doctest/doctest.h>

#include <filesystem>

#include "longspan/base/user_error.h"
#include "longspan/testing/temporary_folder.h"

namespace longspan {

namespace fs = std::filesystem;

TEST_CASE("model files: links that leave the folder are refused, by name, target and remedy") {
  const testing::TemporaryFolder place;
  place.write("id_rsa", "secret");
  place.write("model/config.json", "{}");
  const std::string model = place / "model";
  CHECK(model_file(model, "config.json") == model + "/config.json");
  CHECK(model_file(model, "absent.json") == model + "/absent.json");
  CHECK(model_file(place / "nowhere", "config.json") == place / "nowhere/config.json");
  CHECK_NOTHROW(require_own_files(model));
  CHECK_NOTHROW(require_own_files(place / "nowhere"));

  const std::string link = model + "/generation_config.json";
  for (const std::string& target : {place / "id_rsa", std::string("../id_rsa")}) {
    fs::create_symlink(target, link);
    const std::string secret = fs::canonical(place / "id_rsa").string();
    CHECK_THROWS_WITH_AS(model_file(model, "generation_config.json"),
                         doctest::Contains((link + " is a link to " + secret).c_str()), UserError);
    CHECK_THROWS_WITH_AS(require_own_files(model),
                         doctest::Contains(("cp -rL " + model + " COPY").c_str()), UserError);
    fs::remove(link);
  }
  // Links to a neighbour with a similar name, to nothing, in a cycle, and through a folder.
  place.write("model2/a.json", "{}");
  fs::create_symlink("../model2/a.json", link);
  CHECK_THROWS_AS(model_file(model, "generation_config.json"), UserError);
  fs::remove(link);
  fs::create_symlink("nowhere", link);
  CHECK_THROWS_WITH_AS(require_own_files(model), doctest::Contains("cannot be followed"),
                       UserError);
  fs::remove(link);
  fs::create_symlink("generation_config.json", link);
  CHECK_THROWS_WITH_AS(require_own_files(model), doctest::Contains("cannot be followed"),
                       UserError);
  fs::remove(link);
  fs::create_directory_symlink("../model2", model + "/training_state");
  CHECK_THROWS_AS(model_file(model, "training_state/a.json"), UserError);
  // A link to another file of the folder is allowed.
  fs::create_symlink("config.json", link);
  CHECK_NOTHROW(require_own_files(model));
  CHECK(model_file(model, "generation_config.json") == link);
  // Files that the program does not read may link anywhere.
  fs::create_symlink("../id_rsa", model + "/README.md");
  CHECK_NOTHROW(require_own_files(model));
  // The folder itself may be a link.
  fs::create_directory_symlink("model", place / "linked");
  CHECK_NOTHROW(require_own_files(place / "linked"));
  CHECK(model_file(place / "linked", "config.json") == place / "linked/config.json");
}

TEST_CASE("model files: Hugging Face's cache is a folder of links to the blobs beside it") {
  const testing::TemporaryFolder place;
  const std::string repository = place / "models--a--b", snapshot = repository + "/snapshots/1a2b";
  place.write("models--a--b/blobs/0123", "{}");
  place.write("models--a--b/snapshots/1a2b/README.md", "");
  fs::create_symlink("../../blobs/0123", snapshot + "/config.json");
  CHECK(model_file(snapshot, "config.json") == snapshot + "/config.json");
  CHECK_NOTHROW(require_own_files(snapshot));
  fs::create_directory(snapshot + "/sub");
  fs::create_symlink("../../../blobs/0123", snapshot + "/sub/config.json");
  CHECK_NOTHROW(require_own_files(snapshot + "/sub"));
  fs::create_directory_symlink(snapshot, place / "linked");
  CHECK_NOTHROW(require_own_files(place / "linked"));

  // An old download has placed links elsewhere. The error says which folder to give.
  fs::create_directories(place / "local/deeper");
  fs::create_symlink(repository + "/blobs/0123", place / "local/config.json");
  const std::string cache = fs::canonical(snapshot).string();
  CHECK_THROWS_WITH_AS(
      model_file(place / "local", "config.json"),
      doctest::Contains(("Give the folder of the cache instead: " + cache).c_str()), UserError);
  CHECK_THROWS_WITH_AS(require_own_files(place / "local"),
                       doctest::Contains(("cp -rL " + place.path + "/local COPY").c_str()),
                       UserError);
  CHECK_NOTHROW(require_own_files(cache));
  fs::copy(place / "local", place / "copy", fs::copy_options::recursive);  // as cp -rL
  CHECK_NOTHROW(require_own_files(place / "copy"));

  // Blobs of another repository, targets of blobs, and blobs elsewhere are refused.
  place.write("models--c--d/blobs/4567", "{}");
  fs::create_symlink("../../../models--c--d/blobs/4567", snapshot + "/a.json");
  CHECK_THROWS_AS(require_own_files(snapshot), UserError);
  fs::remove(snapshot + "/a.json");
  place.write("secrets/id_rsa", "secret");
  fs::create_symlink("../../secrets/id_rsa", repository + "/blobs/89ab");
  fs::create_symlink("../../blobs/89ab", snapshot + "/a.json");
  CHECK_THROWS_AS(require_own_files(snapshot), UserError);
  fs::remove_all(repository + "/blobs");
  fs::remove(snapshot + "/config.json");
  fs::create_directory_symlink("../secrets", repository + "/blobs");
  fs::remove(snapshot + "/a.json");
  fs::create_symlink("../../blobs/id_rsa", snapshot + "/a.json");
  CHECK_THROWS_AS(require_own_files(snapshot), UserError);
}

}  // namespace longspan
