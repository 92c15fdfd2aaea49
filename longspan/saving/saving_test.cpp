#include "longspan/saving/saving.h"

#include <filesystem>
#include <fstream>
#include <system_error>

#include "doctest/doctest.h"
#include "longspan/base/user_error.h"
#include "longspan/config/config.h"
#include "longspan/files/atomic_file.h"
#include "longspan/files/file_list.h"
#include "longspan/liveness/unfinished.h"
#include "longspan/saving/checkpoints.h"
#include "longspan/testing/temporary_folder.h"
#include "longspan/testing/without_rights.h"

namespace longspan {
namespace {

namespace fs = std::filesystem;

OutputSettings config_of(const std::string& output_dir, bool overwrite = false) {
  OutputSettings config;
  config.output_dir = output_dir;
  config.overwrite_output_dir = overwrite;
  return config;
}

const std::vector<SourceFolder> kSources{{"model_name_or_path", "/tmp"}};

}  // namespace

TEST_CASE("output_dir: what tells of an earlier run is not overwritten without leave") {
  const testing::TemporaryFolder place;
  CHECK_NOTHROW(check_output_dir(config_of(place / "not-there-yet"), kSources));
  place.write("notes.txt", "x");
  place.write("trainer_log.jsonl", "x");  // a run that was killed before it saved anything
  CHECK_NOTHROW(check_output_dir(config_of(place.path), kSources));
  for (const char* name :
       {"model-00001-of-00002.safetensors", "checkpoint-10", "all_results.json", "config.json"}) {
    const testing::TemporaryFolder used;
    used.write(name, "x");
    CHECK_THROWS_AS(check_output_dir(config_of(used.path), kSources), UserError);
    CHECK_NOTHROW(check_output_dir(config_of(used.path, true), kSources));
  }
  CHECK_THROWS_AS(check_output_dir(config_of("", true), kSources), UserError);
  CHECK_THROWS_AS(check_output_dir(config_of(place / "notes.txt", true), kSources), UserError);
  CHECK_THROWS_WITH_AS(check_output_dir(config_of("/tmp/../tmp", true), kSources),
                       doctest::Contains("is the folder of model_name_or_path"), UserError);
}

TEST_CASE("output_dir: made, proven writable, an old run's reports removed") {
  const testing::TemporaryFolder place;
  for (const char* name : {"trainer_log.jsonl", "eval_results.json", "training_eval_loss.png"}) {
    place.write(name, "x");
  }
  prepare_output_dir(place.path);
  CHECK(fs::exists(place.path + "/eval_results.json"));  // the run may still be refused
  remove_reports(place.path, false);
  CHECK(fs::is_empty(place.path));
  place.write("trainer_log.jsonl", "x");
  place.write("all_results.json", "x");
  remove_reports(place.path, true);
  CHECK(fs::exists(place / "trainer_log.jsonl"));
  CHECK_FALSE(fs::exists(place / "all_results.json"));
  prepare_output_dir(place / "a/b");
  CHECK(fs::is_directory(place / "a/b"));
  place.write("file", "x");
  CHECK_THROWS_AS(prepare_output_dir(place / "file/below"), UserError);
}

TEST_CASE("output_dir: what a killed run has left goes, what is the user's stays") {
  const testing::TemporaryFolder place;
  for (const char* name : {".tmp/thesis", ".notes.tmp", ".checkpoint-x.partial/a",
                           ".checkpoint-07.partial/a", ".longspan-can-write-host-12",
                           "below/.checkpoint-7.partial/config.json", ".model.partial~"}) {
    place.write(name, "mine");
  }
  place.write(".checkpoint-7.partial/training_state/part-00001-of-00001.safetensors", "x");
  place.write(".checkpoint-6.deleted/config.json", "x");
  place.write(".model.partial/model.safetensors", "x");
  fs::create_directory(place / ".checkpoint-8.replaced");
  prepare_output_dir(place.path);
  for (const char* name : {".tmp/thesis", ".notes.tmp", ".checkpoint-x.partial/a",
                           ".checkpoint-07.partial/a", ".longspan-can-write-host-12",
                           "below/.checkpoint-7.partial/config.json", ".model.partial~"}) {
    CHECK_MESSAGE(fs::exists(place / name), name);
  }
  for (const char* name : {".checkpoint-7.partial", ".checkpoint-6.deleted", ".model.partial",
                           ".checkpoint-8.replaced"}) {
    CHECK_MESSAGE(!fs::exists(place / name), name);
  }
  // Folders with a run's names that hold foreign files.
  place.write(".checkpoint-6.deleted/config.json", "x");
  for (const char* name : {".model.partial/thesis", ".checkpoint-7.partial/thesis",
                           ".checkpoint-7.replaced/training_state/thesis"}) {
    place.write(name, "years");
    CHECK_THROWS_WITH_AS(prepare_output_dir(place.path), doctest::Contains("thesis"), UserError);
    CHECK(fs::exists(place / name));
    CHECK(fs::exists(place / ".checkpoint-6.deleted"));
    CHECK_THROWS_AS(TemporaryFolder(fs::path(place / name).parent_path()), UserError);
    fs::remove_all(fs::path(place / name).parent_path());
    fs::remove_all(place / ".checkpoint-7.replaced");
  }
  fs::create_directory_symlink(place / ".tmp", place / ".model.partial");
  CHECK_THROWS_AS(prepare_output_dir(place.path), UserError);
  CHECK(fs::exists(place / ".tmp/thesis"));
}

TEST_CASE("output_dir: a folder that a disk of the network keeps is in nobody's way") {
  const testing::TemporaryFolder place;
  const auto kept = [&](const std::string& name) {
    const std::string path = place.write(name + "/.nfs0123456789abcdef00000001", "x");
    fs::permissions(place / name, fs::perms(0555));
    return path;
  };
  fs::permissions(place.path, fs::perms(0777));
  const std::string held = kept(".checkpoint-4.replaced"), old = kept(".checkpoint-5.deleted");
  {
    const testing::WithoutRights nobody;  // as on such a disk: nothing can be removed
    place.write(".checkpoint-4.replaced-2/config.json", "x");
    std::error_code error;
    REQUIRE_FALSE(fs::remove(held, error));
    prepare_output_dir(place.path);
    CHECK(fs::exists(held));
    CHECK(fs::exists(old));
    CHECK_FALSE(fs::exists(place / ".checkpoint-4.replaced-2"));
    // The next replaced checkpoint gets another name, so the new one can take its place.
    const std::string name = name_for_replaced(place.path, "checkpoint-4");
    CHECK(name == place / ".checkpoint-4.replaced-2");
    fs::create_directories(place / "checkpoint-4/old");
    fs::create_directories(place / ".checkpoint-4.partial/new");
    put_in_place(place / ".checkpoint-4.partial", place / "checkpoint-4", name);
    CHECK(fs::exists(place / "checkpoint-4/new"));
    CHECK(fs::exists(name + "/old"));
    fs::remove_all(place / "checkpoint-4");
    fs::remove_all(name);
    CHECK(name_for_replaced(place.path, "checkpoint-9") == place / ".checkpoint-9.replaced");
  }
  for (const char* name : {".checkpoint-4.replaced", ".checkpoint-5.deleted"}) {
    fs::permissions(place / name, fs::perms(0755));
  }
  // Once the folders are released, they are removed.
  CHECK(name_for_replaced(place.path, "checkpoint-4") == place / ".checkpoint-4.replaced");
  prepare_output_dir(place.path);
  CHECK(place.num_files() == 0);
}

TEST_CASE("output_dir: a model whose files were being moved gets its place as a whole") {
  const testing::TemporaryFolder place;
  const auto content = [&](const std::string& name) {
    std::ifstream file(place / name);
    std::string text;
    file >> text;
    return text;
  };
  // An earlier run's model, and notes of the user's.
  for (const char* name : {"config.json", "tokenizer.json", "added_tokens.json"}) {
    place.write(name, "old");
  }
  write_file_list(place.path);
  place.write("notes.txt", "mine");
  place.write("chat_template.jinja", "mine");
  // The new model's config.json has already been moved.
  for (const char* name : {"config.json", "tokenizer.json", "model.safetensors"}) {
    place.write(std::string(".model.partial/") + name, "new");
  }
  finish_saved_model(place.path);  // not listed yet: the run was killed while it wrote
  CHECK(content("tokenizer.json") == "old");
  write_file_list(place / ".model.partial");
  fs::rename(place / ".model.partial/config.json", place / "config.json");
  finish_saved_model(place.path);
  for (const char* name : {"config.json", "tokenizer.json", "model.safetensors"}) {
    CHECK_MESSAGE(content(name) == "new", name);
  }
  CHECK_FALSE(fs::exists(place / "added_tokens.json"));
  CHECK_FALSE(fs::exists(place / ".model.partial"));
  CHECK(content("notes.txt") == "mine");
  CHECK(content("chat_template.jinja.kept") == "mine");
  CHECK_FALSE(fs::exists(place / "chat_template.jinja"));
  CHECK(read_file_list(place.path).size() == 3);
  finish_saved_model(place.path);
  CHECK(content("config.json") == "new");
}

TEST_CASE("temporary folder: gone with its object") {
  const testing::TemporaryFolder place;
  {
    const TemporaryFolder folder(place / "part");
    std::ofstream(folder.path() + "/file") << "x";
    CHECK(fs::exists(folder.path()));
  }
  CHECK(fs::is_empty(place.path));
}

}  // namespace longspan
