#include "longspan/account/disk_model.h"

#include <algorithm>

#include "doctest/doctest.h"
#include "longspan/base/user_error.h"

namespace longspan {
namespace {

/// 1000 trained elements in fp32: a model of 4000 bytes, a checkpoint of 12000.
DiskFacts facts_of(int64_t num_saves, int64_t limit = 0, int64_t num_found = 0) {
  return {.saved_elements = 1000,
          .saved_bytes = 4,
          .other_bytes = 0,
          .num_trained = 1000,
          .only_model = false,
          .rounded = false,
          .num_saves = num_saves,
          .num_found = num_found,
          .limit = limit};
}

/// Returns the peak of the additional bytes, by simulation: writes, then deletes.
int64_t most_by_doing(const DiskFacts& facts) {
  const DiskNeed need = disk_need(facts);
  int64_t kept = facts.num_found, most = 0;
  for (int64_t i = 0; i < facts.num_saves; ++i) {
    ++kept;
    most = std::max(most, (kept - facts.num_found) * need.checkpoint);
    if (facts.limit > 0) kept = std::min(kept, facts.limit);
  }
  return std::max(most, (kept - facts.num_found) * need.checkpoint + need.model);
}

}  // namespace

TEST_CASE("disk: what a save takes") {
  DiskFacts facts = facts_of(1);
  CHECK(disk_need(facts).model == 4000);
  CHECK(disk_need(facts).checkpoint == 12000);  // and two moments in fp32
  facts.saved_bytes = 2;
  facts.rounded = true;
  CHECK(disk_need(facts).model == 2000);
  CHECK(disk_need(facts).checkpoint == 2000 + 8000 + 4000);  // and fp32 masters
  facts.only_model = true;
  CHECK(disk_need(facts).checkpoint == 2000);
  facts = facts_of(1);
  facts.saved_elements = facts.num_trained = 10;  // an adapter
  facts.other_bytes = 100;
  CHECK(disk_need(facts).model == 140);
  CHECK(disk_need(facts).checkpoint == 220);
}

TEST_CASE("disk: the most at any time, with and without a limit, with older checkpoints") {
  for (const int64_t num_saves : {0, 1, 2, 5}) {
    for (const int64_t limit : {0, 1, 2, 4, 7}) {
      for (const int64_t num_found : {0, 1, 3, 6}) {
        const DiskFacts facts = facts_of(num_saves, limit, num_found);
        CAPTURE(num_saves);
        CAPTURE(limit);
        CAPTURE(num_found);
        CHECK(disk_need(facts).most == most_by_doing(facts));
      }
    }
  }
}

TEST_CASE("disk: saves that are still to come") {
  CHECK(num_saves(Interval::kNever, 5, 0, 20, 4) == 0);
  CHECK(num_saves(Interval::kSteps, 5, 0, 20, 4) == 4);
  CHECK(num_saves(Interval::kSteps, 5, 10, 20, 4) == 2);
  CHECK(num_saves(Interval::kSteps, 50, 0, 20, 4) == 0);
  CHECK(num_saves(Interval::kEpoch, 5, 0, 20, 4) == 5);
  CHECK(num_saves(Interval::kEpoch, 5, 0, 18, 4) == 5);  // and one after the last step
  CHECK(num_saves(Interval::kEpoch, 5, 8, 18, 4) == 3);
  CHECK(num_saves(Interval::kEpoch, 5, 20, 20, 4) == 0);
}

TEST_CASE("disk: a limit of file sizes is known before anything is trained") {
  constexpr int64_t kShard = 1000;
  const DiskFacts small{.saved_elements = 100, .saved_bytes = 4}, large{.saved_elements = 10'000};
  check_file_size(small, std::nullopt, kShard);
  check_file_size(small, 400, kShard);
  CHECK_THROWS_WITH(check_file_size(small, 399, kShard), doctest::Contains("ulimit -f unlimited"));
  // Two moments of 4 bytes each, written by two processes.
  DiskFacts saves = small;
  saves.num_trained = 100, saves.num_processes = 2, saves.num_saves = 1;
  check_file_size(saves, 400, kShard);
  saves.num_trained = 102;
  CHECK_THROWS_AS(check_file_size(saves, 400, kShard), UserError);
  saves.num_saves = 0, saves.sharded = true;
  check_file_size(saves, 200, kShard);
  check_file_size(large, 500,
                  kShard);  // files of more than half a shard are noticed only when written
  CHECK_THROWS_AS(check_file_size(large, 499, kShard), UserError);
}

TEST_CASE("disk: an error only where not even the model fits, a warning where it is tight") {
  const DiskFacts facts = facts_of(5);
  CHECK_THROWS_WITH_AS(disk_account(facts, {"out", 3999}, {}),
                       doctest::Contains("takes 3.9 KiB on disk, and 3.9 KiB are free in "
                                         "output_dir out"),
                       UserError);
  CHECK_THROWS_AS(disk_account(facts, {"out", 0}, Room{"other", 3999}), UserError);
  const auto says = [](const std::string& text, const std::string& part) {
    CHECK_MESSAGE(text.find(part) != std::string::npos, text);
  };
  says(disk_account(facts, {"out", 0}, Room{"other", 4000}), "warning: that is not enough");
  const std::string tight = disk_account(facts, {"out", 4000 + 3 * 12000}, {});
  says(tight, "5 checkpoints 11.7 KiB each: at most 62.5 KiB more; 39.1 KiB are free in out.");
  says(tight, "save_total_limit: 2");  // the third exists while the new one is written
  says(tight, "Quotas of a user or a folder cannot be seen");
  CHECK(disk_need(facts_of(5, 2)).most <= 4000 + 3 * 12000);
  CHECK(disk_account(facts, {"out", 64000}, {}).find("warning") == std::string::npos);
  says(disk_account(facts_of(5, 2), {"out", 64000}, {}), "(2 kept)");
  // Unknown space is treated as enough.
  CHECK(disk_account(facts, {"out", {}}, {}).empty());
  says(disk_account(facts, {"out", 0}, Room{"other", {}}), "warning: that is not enough");
}

}  // namespace longspan
