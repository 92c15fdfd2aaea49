#include "longspan/train/saving.h"

#include <filesystem>
#include <fstream>

#include "doctest/doctest.h"
#include "longspan/config/user_error.h"
#include "longspan/testing/temporary_folder.h"
#include "longspan/train/interrupt.h"

namespace longspan {
namespace {

namespace fs = std::filesystem;

Config config_of(const std::string& output_dir, bool overwrite = false) {
  Config config;
  config.model_name_or_path = "/tmp";
  config.output_dir = output_dir;
  config.overwrite_output_dir = overwrite;
  return config;
}

}  // namespace

TEST_CASE("output_dir: what tells of an earlier run is not overwritten without leave") {
  const testing::TemporaryFolder place;
  CHECK_NOTHROW(check_output_dir(config_of(place / "not-there-yet")));
  place.write("notes.txt", "x");
  place.write("trainer_log.jsonl", "x");  // of a run that was killed before it saved anything
  CHECK_NOTHROW(check_output_dir(config_of(place.path)));
  for (const char* name :
       {"model-00001-of-00002.safetensors", "checkpoint-10", "all_results.json", "config.json"}) {
    const testing::TemporaryFolder used;
    used.write(name, "x");
    CHECK_THROWS_AS(check_output_dir(config_of(used.path)), UserError);
    CHECK_NOTHROW(check_output_dir(config_of(used.path, true)));
  }
  CHECK_THROWS_AS(check_output_dir(config_of("", true)), UserError);
  CHECK_THROWS_AS(check_output_dir(config_of(place / "notes.txt", true)), UserError);
  CHECK_THROWS_WITH_AS(check_output_dir(config_of("/tmp/../tmp", true)),
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
