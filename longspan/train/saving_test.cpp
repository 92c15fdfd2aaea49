#include "longspan/train/saving.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "doctest/doctest.h"
#include "longspan/config/user_error.h"
#include "longspan/train/interrupt.h"

namespace longspan {
namespace {

namespace fs = std::filesystem;

struct TemporaryPlace {
  std::string path;
  TemporaryPlace() {
    char name[] = "/tmp/longspan-saving-test-XXXXXX";
    path = mkdtemp(name);
  }
  ~TemporaryPlace() { fs::remove_all(path); }
  void touch(const std::string& name) const { std::ofstream(path + "/" + name) << "x"; }
};

Config config_of(const std::string& output_dir, bool overwrite = false) {
  Config config;
  config.model_name_or_path = "/tmp";
  config.output_dir = output_dir;
  config.overwrite_output_dir = overwrite;
  return config;
}

}  // namespace

TEST_CASE("output_dir: what tells of an earlier run is not overwritten without leave") {
  const TemporaryPlace place;
  CHECK_NOTHROW(check_output_dir(config_of(place.path + "/not-there-yet")));
  place.touch("notes.txt");
  place.touch("trainer_log.jsonl");  // of a run that was killed before it saved anything
  CHECK_NOTHROW(check_output_dir(config_of(place.path)));
  for (const char* name :
       {"model-00001-of-00002.safetensors", "checkpoint-10", "all_results.json", "config.json"}) {
    const TemporaryPlace used;
    used.touch(name);
    CHECK_THROWS_AS(check_output_dir(config_of(used.path)), UserError);
    CHECK_NOTHROW(check_output_dir(config_of(used.path, true)));
  }
  CHECK_THROWS_AS(check_output_dir(config_of("", true)), UserError);
  CHECK_THROWS_AS(check_output_dir(config_of(place.path + "/notes.txt", true)), UserError);
  CHECK_THROWS_WITH_AS(check_output_dir(config_of("/tmp/../tmp", true)),
                       doctest::Contains("is the folder of model_name_or_path"), UserError);
}

TEST_CASE("output_dir: made, proven writable, an old run's reports removed") {
  const TemporaryPlace place;
  for (const char* name : {"trainer_log.jsonl", "eval_results.json", "training_eval_loss.png"}) {
    place.touch(name);
  }
  prepare_output_dir(place.path);
  CHECK(fs::exists(place.path + "/eval_results.json"));  // the run may still be refused
  remove_reports(place.path, false);
  CHECK(fs::is_empty(place.path));
  place.touch("trainer_log.jsonl");
  place.touch("all_results.json");
  remove_reports(place.path, true);
  CHECK(fs::exists(place.path + "/trainer_log.jsonl"));
  CHECK_FALSE(fs::exists(place.path + "/all_results.json"));
  prepare_output_dir(place.path + "/a/b");
  CHECK(fs::is_directory(place.path + "/a/b"));
  place.touch("file");
  CHECK_THROWS_AS(prepare_output_dir(place.path + "/file/below"), UserError);
}

TEST_CASE("temporary folder: gone with its object") {
  const TemporaryPlace place;
  {
    const TemporaryFolder folder(place.path + "/part");
    std::ofstream(folder.path() + "/file") << "x";
    CHECK(fs::exists(folder.path()));
  }
  CHECK(fs::is_empty(place.path));
}

}  // namespace longspan
