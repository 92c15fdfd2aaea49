#include "longspan/rollouts/rollout_file.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>

#include "longspan/base/user_error.h"
#include "longspan/testing/dataset_folder.h"
#include "longspan/testing/temporary_folder.h"

namespace longspan {
namespace {

const std::string kGood = R"({"group": 1, "token_ids": [1, 2, 3], "mask": [0, 1, 1], "reward": 1})";

std::string with_id(const std::string& id, const std::string& parent = "",
                    const std::string& group = "g") {
  const std::string link = parent.empty() ? "" : R"("parent": ")" + parent + R"(", )";
  return R"({"id": ")" + id + R"(", )" + link + R"("group": ")" + group +
         R"(", "token_ids": [1, 2], "mask": [0, 1], "reward": 1})";
}

void append_text(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary | std::ios::app) << text;
}

class RolloutFolder {
 public:
  std::string write(const std::string& text) const { return folder_.write("r.jsonl", text); }
  std::string path() const { return folder_ / "r.jsonl"; }
  std::vector<Rollout> read(const std::string& text, OnBadRow on_bad_row = OnBadRow::kStop) {
    notes.clear();
    return read_rollouts(write(text), {.vocab_size = 10}, on_bad_row, notes);
  }
  std::string complaint(const std::string& text, OnBadRow on_bad_row = OnBadRow::kStop) {
    try {
      read(text, on_bad_row);
    } catch (const UserError& error) {
      return error.what();
    }
    return "";
  }
  std::vector<std::string> notes;

 private:
  testing::TemporaryFolder folder_;
};

std::string complaint_of_next(RolloutFollower& follower) {
  BadRows bad;
  try {
    follower.next(100, bad);
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("rollout files: lines, empty lines, a byte order mark and a last line without an end") {
  RolloutFolder folder;
  const std::vector<Rollout> read = folder.read("\xef\xbb\xbf" + kGood + "\r\n\n" + kGood);
  REQUIRE(read.size() == 2);
  CHECK(read[0].source == folder.path() + ", line 1");
  CHECK(read[1].source == folder.path() + ", line 3");
  CHECK_SAYS(folder.complaint("\n"), "there are no rollouts in it");
}

TEST_CASE("rollout files: broken lines are named with their numbers") {
  RolloutFolder folder;
  CHECK_SAYS(folder.complaint(kGood + "\n{\"group\"\n"), "r.jsonl, line 2: broken JSON");
  CHECK_SAYS(folder.complaint(kGood + "\n[]\n"), "r.jsonl, line 2 is not a JSON object");
  CHECK_SAYS(folder.complaint(kGood + "\n{\"group\"\n"), "1 of 2 rows cannot be used");
  CHECK(folder.read(kGood + "\n{\"group\"\n", OnBadRow::kSkip).size() == 1);
  REQUIRE(folder.notes.size() == 1);
  CHECK_SAYS(folder.notes[0], "1 of 2 rows left out");
  CHECK_SAYS(folder.complaint("{}\n", OnBadRow::kSkip), "its only row cannot be used");
}

TEST_CASE("rollout files: links") {
  RolloutFolder folder;
  // A child may stand before its parent.
  CHECK(folder.read(with_id("b", "a") + "\n" + with_id("a")).size() == 2);
  CHECK_SAYS(folder.complaint(with_id("a") + "\n" + with_id("a")),
             "line 2: the id \"a\" is also that of " + folder.path() + ", line 1");
  CHECK_SAYS(folder.complaint(with_id("b", "a")), "line 1: the parent \"a\" is unknown");
  CHECK_SAYS(folder.complaint(with_id("a") + "\n" + with_id("b", "a", "h")),
             "line 2: the parent \"a\" is in group \"g\", and the rollout in group \"h\"");
  CHECK_SAYS(folder.complaint(with_id("a", "a")), "line 1: its parents lead in a circle");
  const std::string circle =
      folder.complaint(with_id("a", "c") + "\n" + with_id("b", "a") + "\n" + with_id("c", "b") +
                       "\n" + with_id("d", "c") + "\n" + with_id("e"));
  for (const char* line : {"1", "2", "3"}) {
    CHECK_SAYS(circle, std::string("line ") + line + ": its parents lead in a circle");
  }
  CHECK_SAYS(circle, "line 4: the parent \"c\" cannot be used");
  CHECK_SAYS(circle, "4 of 5 rows");
  // The continuations of a rollout that is left out are left out, too.
  const std::vector<Rollout> rest = folder.read(with_id("a", "lost") + "\n" + with_id("c", "b") +
                                                    "\n" + with_id("b", "a") + "\n" + with_id("e"),
                                                OnBadRow::kSkip);
  REQUIRE(rest.size() == 1);
  CHECK(rest[0].id == "e");
}

TEST_CASE("rollout files: a long chain of parents takes no stack") {
  RolloutFolder folder;
  std::string text;
  for (int i = 20000; i-- > 0;) {
    text += with_id(std::to_string(i), i == 0 ? "" : std::to_string(i - 1)) + "\n";
  }
  CHECK(folder.read(text).size() == 20000);
}

TEST_CASE("rollout files that grow: whole lines, in order, once") {
  const RolloutFolder folder;
  RolloutFollower follower(folder.path(), {.vocab_size = 10});
  BadRows bad;
  CHECK(follower.next(10, bad).empty());  // no file yet
  folder.write(kGood + "\n" + kGood + "\n" + kGood.substr(0, 20));
  CHECK(follower.next(1, bad).size() == 1);
  CHECK(follower.next(10, bad).size() == 1);
  CHECK(follower.next(10, bad).empty());
  append_text(folder.path(), kGood.substr(20));
  CHECK(follower.next(10, bad).empty());  // the line may go on
  append_text(folder.path(), "\n\nbroken\n" + kGood + "\n");
  const std::vector<Rollout> more = follower.next(10, bad);
  REQUIRE(more.size() == 2);
  CHECK(more[0].source == folder.path() + ", line 3");
  CHECK(more[1].source == folder.path() + ", line 6");
  CHECK(bad.count() == 1);
  CHECK(follower.position().line == 6);

  RolloutFollower resumed(folder.path(), {.vocab_size = 10}, follower.position());
  append_text(folder.path(), kGood + "\n");
  const std::vector<Rollout> rest = resumed.next(10, bad);
  REQUIRE(rest.size() == 1);
  CHECK(rest[0].source == folder.path() + ", line 7");
}

TEST_CASE("rollout files that grow: lines longer than one read") {
  const RolloutFolder folder;
  folder.write(std::string(5 << 20, ' ') + kGood + "\n" + kGood + "\n");
  RolloutFollower follower(folder.path(), {.vocab_size = 10});
  BadRows bad;
  CHECK(follower.next(10, bad).size() == 2);
}

TEST_CASE("rollout files that grow: other changes of the file are errors") {
  const RolloutFolder folder;
  const std::string three = kGood + "\n" + kGood + "\n" + kGood + "\n";
  const auto after = [&](auto change) {
    std::filesystem::remove(folder.path());
    folder.write(three);
    RolloutFollower follower(folder.path(), {.vocab_size = 10});
    BadRows bad;
    CHECK(follower.next(10, bad).size() == 3);
    change();
    return complaint_of_next(follower);
  };
  CHECK_SAYS(after([&] { folder.write(kGood + "\n"); }), "the file was truncated to");
  CHECK_SAYS(after([&] { std::filesystem::remove(folder.path()); }), "the file is gone");
  CHECK_SAYS(after([&] {
               folder.write("");
               std::string other = three;
               other[other.find("[1, 2, 3]") + 1] = '7';
               other += kGood + "\n";
               append_text(folder.path(), other);
             }),
             "the file was written anew");
  CHECK_SAYS(after([&] {
               std::filesystem::rename(folder.path(), folder.path() + ".old");
               folder.write(three);
             }),
             "another file has taken the name");
  CHECK(after([&] { append_text(folder.path(), kGood + "\n"); }).empty());
}

}  // namespace longspan
