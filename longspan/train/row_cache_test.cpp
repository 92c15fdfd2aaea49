#include "longspan/train/row_cache.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <thread>

#include "longspan/base/user_error.h"
#include "longspan/comm/mesh.h"
#include "longspan/settings/data_settings.h"
#include "longspan/testing/temporary_folder.h"
#include "longspan/train/shared_data.h"

namespace longspan {
namespace {

/// Collects the lines that a run tells.
struct Lines final : EventSink {
  std::vector<std::string> all;
  void take(const Event& event) override { all.push_back(std::get<Said>(event).text); }
  bool have(const std::string& part) const {
    return std::ranges::any_of(
        all, [&](const std::string& line) { return line.find(part) != std::string::npos; });
  }
};

/// Runs of one process that read three rows and an evaluation row from a file.
struct Runs {
  testing::TemporaryFolder folder;
  std::string data = folder.write("rows.jsonl", "a b c");
  std::string place = folder / "kept";
  bool is_given = true, overwrites = false, has_columns = false;
  std::string cutoff_len = "64";
  int64_t vocab_size = 10;
  std::optional<int64_t> num_documents;
  std::atomic<int> num_readers = 0;

  RowsKey key() const {
    return {.values = {{"stage", "sft"}, {"cutoff_len", cutoff_len}},
            .files = {{.what = "training data",
                       .path = data,
                       .stamp = stamp_of_file(data),
                       .digest = std::nullopt}}};
  }
  DataNote read(const Events& events, const ExampleTaker& take) {
    ++num_readers;
    events.say("three rows");
    std::vector<Example> train(3);
    for (int32_t i = 0; i < 3; ++i) train[i].documents = {{{i, 2}, {-100, 2}}};
    if (has_columns) train[1].documents[0].columns["weight"] = {at::ones({2})};
    for (const Example& example : train) take(example);
    // A process that keeps nothing does not keep others from writing.
    if (has_columns) CHECK_NOTHROW(FolderLock("cache_dir", place));
    take(train[2]);
    return {.num_train = 3,
            .fingerprint = fingerprint_of(ExamplesInMemory(train)),
            .eval_fingerprint = "",
            .chat = std::nullopt};
  }
  Lines run() {
    Lines lines;
    Events events(/*rank=*/0, &lines);
    Notices notices{Rendezvous()};
    const RunData shared = share_data(
        Mesh().world, notices, folder / "temporary", events,
        [&](Events& to, const ExampleTaker& take) { return read(to, take); },
        {vocab_size, num_documents},
        [&] {
          return std::make_unique<RowCache>(RowCachePlace{place, is_given, overwrites}, key());
        });
    const std::string fingerprint = fingerprint_of(*shared.train);  // may throw
    CHECK(shared.train->size() == 3);
    CHECK(fingerprint == shared.fingerprint);
    CHECK(shared.eval->example(0)->documents[0].input_ids == std::vector<int32_t>{2, 2});
    CHECK(shared.eval->example(0)->number == 3);
    return lines;
  }
  std::string file() const { return place + "/rows.longspan"; }
};

void overwrite(const std::string& path, int64_t place, const std::string& bytes) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(place);
  file << bytes;
}

}  // namespace

TEST_CASE("row cache: the first run reads the data, and later ones read the kept rows") {
  Runs runs;
  const Lines first = runs.run(), second = runs.run();
  CHECK(runs.num_readers == 1);
  CHECK(first.have("The encoded rows are saved in " + runs.place));
  CHECK(second.have("three rows"));
  CHECK(second.have("The encoded rows were read from " + runs.place));
  runs.overwrites = true;
  runs.run();
  CHECK(runs.num_readers == 2);
  // No lock and no temporary file is left.
  CHECK(std::distance(std::filesystem::directory_iterator(runs.place),
                      std::filesystem::directory_iterator()) == 1);
}

TEST_CASE("row cache: a given folder with rows of another key is refused, a cache's is replaced") {
  for (const bool is_given : {true, false}) {
    for (const bool changes_file : {true, false}) {
      CAPTURE(is_given);
      CAPTURE(changes_file);
      Runs runs;
      runs.is_given = is_given;
      runs.run();
      // Another time of the same contents is no other file.
      std::filesystem::last_write_time(runs.data, std::filesystem::file_time_type());
      runs.run();
      CHECK(runs.num_readers == 1);
      if (changes_file) runs.folder.write("rows.jsonl", "a b d");
      if (!changes_file) runs.cutoff_len = "32";
      if (!is_given) {
        CHECK(runs.run().have("are replaced: they were made with "));
        CHECK(runs.num_readers == 2);
        continue;
      }
      CHECK_THROWS_WITH_AS(
          runs.run(),
          doctest::Contains(changes_file ? "made with other training data (5 bytes"
                                         : "made with cutoff_len 64 instead of 32"),
          UserError);
      CHECK(runs.num_readers == 1);
      runs.overwrites = true;
      runs.run();
      runs.overwrites = false;
      runs.run();
      CHECK(runs.num_readers == 2);
    }
  }
}

TEST_CASE("row cache: a folder of something else is left alone") {
  Runs runs;
  runs.folder.write("kept/dataset_dict.json", "{}");
  for (const bool overwrites : {false, true}) {
    runs.overwrites = overwrites;
    CHECK_THROWS_WITH_AS(runs.run(), doctest::Contains("of Hugging Face datasets"), UserError);
  }
  CHECK(runs.num_readers == 0);
  CHECK_FALSE(std::filesystem::exists(runs.file()));
}

TEST_CASE("row cache: of runs at once, one reads") {
  Runs runs;
  std::vector<std::jthread> threads;
  for (int i = 0; i < 3; ++i) threads.emplace_back([&] { runs.run(); });
  threads.clear();
  CHECK(runs.num_readers == 1);
}

TEST_CASE("row cache: rows with columns are not kept, and a given folder refuses them") {
  Runs runs;
  runs.has_columns = true;
  CHECK_THROWS_WITH_AS(runs.run(), doctest::Contains("keeps tokens"), UserError);
  CHECK_FALSE(std::filesystem::exists(runs.place));
  runs.is_given = false;
  runs.run();
  runs.run();
  CHECK(runs.num_readers == 3);
}

TEST_CASE("row cache: a run goes on without a cache that it cannot use") {
  Runs runs;
  runs.place = runs.folder.write("file", "") + "/kept";
  CHECK_THROWS_AS(runs.run(), UserError);
  runs.is_given = false;
  CHECK(runs.run().have("The encoded rows are not kept: "));
  CHECK(runs.num_readers == 1);
}

TEST_CASE("row cache: what a stranger may have written is refused before it is trained on") {
  Runs runs;
  runs.run();
  SUBCASE("a token outside of the vocabulary") {
    runs.vocab_size = 2;
    CHECK_THROWS_WITH_AS(runs.run(), doctest::Contains("not in the vocabulary"), UserError);
  }
  SUBCASE("another number of documents") {
    runs.num_documents = 2;
    CHECK_THROWS_WITH_AS(runs.run(), doctest::Contains("another number of documents"), UserError);
  }
  SUBCASE("a damaged file") {
    overwrite(runs.file(), 8, std::string(8, '\x7f'));
    CHECK_THROWS_WITH_AS(runs.run(), doctest::Contains("Set overwrite_cache: true"), UserError);
    runs.is_given = false;
    runs.run();
    CHECK(runs.num_readers == 2);
  }
  SUBCASE("a short file") {
    std::filesystem::resize_file(runs.file(), 40);
    CHECK_THROWS_WITH_AS(runs.run(), doctest::Contains("Set overwrite_cache: true"), UserError);
  }
}

TEST_CASE("row cache: small data sets are kept in a given folder alone") {
  DataSettings config;
  config.cache_dir = "/tmp";
  RowsKey key;
  key.num_data_bytes = kFewestCachedBytes - 1;
  CHECK_FALSE(row_cache_place(config, key));
  key.num_data_bytes = kFewestCachedBytes;
  const auto place = row_cache_place(config, key);
  REQUIRE(place);
  CHECK(place->folder.starts_with("/tmp/rows/"));
  // Rows with a date are of one day.
  key.writes_time = true;
  CHECK_FALSE(row_cache_place(config, key));
  key.num_data_bytes = int64_t{1} << 60;
  key.writes_time = false;
  CHECK_FALSE(row_cache_place(config, key));
  config.tokenized_path = "given";
  CHECK(row_cache_place(config, key)->is_given);
}

}  // namespace longspan
