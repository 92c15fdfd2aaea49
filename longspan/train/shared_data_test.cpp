#include "longspan/train/shared_data.h"

#include <doctest/doctest.h>

#include <atomic>
#include <mutex>
#include <set>

#include "longspan/base/user_error.h"
#include "longspan/liveness/agreement.h"
#include "longspan/testing/ranks.h"
#include "longspan/testing/temporary_folder.h"

namespace longspan {
namespace {

std::vector<Example> examples_of(std::vector<int32_t> tokens) {
  std::vector<Example> examples;
  for (const int32_t token : tokens) {
    examples.emplace_back().documents = {{{token, 2}, {-100, 2}}};
  }
  return examples;
}

RunData some_data() {
  RunData data;
  data.train = std::make_unique<ExamplesInMemory>(examples_of({5, 6, 7}));
  data.eval = std::make_unique<ExamplesInMemory>(examples_of({8}), 3);
  data.fingerprint = fingerprint_of(*data.train);
  data.eval_fingerprint = fingerprint_of(*data.eval);
  data.chat = SavedChat{.chat_template = "{{ x }}",
                        .eos = SavedChat::Token{"<end>", 4},
                        .pad = std::nullopt,
                        .stop_ids = {4, 9}};
  return data;
}

RunData shared(const Mesh& mesh, const std::string& folder, const std::function<RunData()>& read) {
  Notices notices{Rendezvous()};
  Events events(/*rank=*/0, /*sink=*/nullptr);
  return share_data(mesh.world, notices, folder, events, [&](Events&, const ExampleTaker& take) {
    const RunData data = read();
    for (const ExampleSet* set : {data.train.get(), data.eval.get()}) {
      for (int64_t i = 0; i < set->size(); ++i) take(*set->example(i));
    }
    return DataNote{data.train->size(), data.fingerprint, data.eval_fingerprint, data.chat};
  });
}

}  // namespace

TEST_CASE("shared data: one rank of the machine reads, and all have what it has read") {
  const testing::TemporaryFolder folder;
  std::atomic<int> num_readers = 0;
  std::mutex mutex;
  std::vector<RunData> all;
  testing::run_ranks(3, [&](const Mesh& mesh) {
    RunData data = shared(mesh, folder.path, [&] {
      ++num_readers;
      return some_data();
    });
    require_same_data(mesh.world, data);
    const std::lock_guard lock(mutex);
    all.push_back(std::move(data));
  });
  CHECK(num_readers == 1);
  CHECK(folder.num_files() == 0);
  REQUIRE(all.size() == 3);
  const RunData expected = some_data();
  for (const RunData& data : all) {
    CHECK(data.fingerprint == expected.fingerprint);
    CHECK(data.eval_fingerprint == expected.eval_fingerprint);
    CHECK(fingerprint_of(*data.train) == expected.fingerprint);
    CHECK(fingerprint_of(*data.eval) == expected.eval_fingerprint);
    CHECK(data.eval->example(0)->number == 3);
    REQUIRE(data.chat);
    CHECK(data.chat->chat_template.value_or("") == "{{ x }}");
    REQUIRE(data.chat->eos);
    CHECK(data.chat->eos->text == "<end>");
    CHECK(data.chat->eos->id == 4);
    CHECK_FALSE(data.chat->pad);
    CHECK(data.chat->stop_ids == std::vector<int32_t>{4, 9});
  }
}

TEST_CASE("shared data: one rank alone, without a chat") {
  const testing::TemporaryFolder folder;
  RunData data = shared(Mesh(), folder.path, [] {
    RunData mine = some_data();
    mine.chat.reset();
    return mine;
  });
  CHECK(fingerprint_of(*data.train) == some_data().fingerprint);
  CHECK_FALSE(data.chat);
}

TEST_CASE("shared data: an error of the rank that reads is one of all ranks") {
  const testing::TemporaryFolder folder;
  std::mutex mutex;
  std::multiset<std::string> errors;
  testing::run_ranks(3, [&](const Mesh& mesh) {
    std::string error;
    try {
      shared(mesh, folder.path, []() -> RunData { throw UserError("row 7 is bad"); });
    } catch (const AgreedError& agreed) {
      error = std::string("rank 0: ") + agreed.what();
    } catch (const FailedElsewhere& failed) {
      error = failed.what();
    }
    const std::lock_guard lock(mutex);
    errors.insert(error);
  });
  CHECK(errors ==
        std::multiset<std::string>{"rank 0: row 7 is bad", "row 7 is bad", "row 7 is bad"});
}

TEST_CASE("shared data: a folder that takes no file is known before anything is read") {
  const testing::TemporaryFolder folder;
  const std::string file = folder.write("file", "");
  bool reads = false;
  CHECK_THROWS_WITH(shared(Mesh(), file,
                           [&] {
                             reads = true;
                             return some_data();
                           }),
                    doctest::Contains("cache_dir"));
  CHECK_FALSE(reads);
}

}  // namespace longspan
