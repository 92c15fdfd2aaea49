#include "longspan/rollouts/group.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "longspan/testing/dataset_folder.h"

namespace longspan {
namespace {

Rollout member(const std::string& group, std::optional<int64_t> version = {},
               const std::string& id = "", const std::string& parent = "") {
  return {.id = id,
          .group = group,
          .parent = parent,
          .token_ids = {1, 2},
          .mask = {false, true},
          .reward = 1,
          .policy_version = version,
          .source = "r.jsonl, " + group};
}

template <typename Work>
std::string complaint_of_groups(Work work) {
  try {
    work();
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

std::vector<std::string> names_of_groups(const std::vector<RolloutGroup>& groups) {
  std::vector<std::string> names;
  for (const RolloutGroup& group : groups) names.push_back(group.name);
  return names;
}

}  // namespace

TEST_CASE("rollout groups: complete groups in the order of their completion") {
  GroupCollector groups({.num_generations = 2});
  std::vector<std::string> notes;
  for (const char* name : {"a", "b", "b", "c", "a", "d", "b"}) groups.add(member(name));
  CHECK(groups.num_complete() == 2);
  CHECK(groups.take(3, std::nullopt, notes).empty());
  CHECK(groups.num_complete() == 2);
  CHECK(groups.incomplete() ==
        "3 groups are incomplete: \"c\" has 1 of 2 rollouts, \"d\" has 1 of 2 rollouts, \"b\" has "
        "1 of 2 rollouts");
  CHECK_SAYS(complaint_of_groups([&] { groups.finish(); }), "3 groups are incomplete");
  CHECK(names_of_groups(groups.take(1, std::nullopt, notes)) == std::vector<std::string>{"b"});
  CHECK(names_of_groups(groups.take(1, std::nullopt, notes)) == std::vector<std::string>{"a"});
  CHECK(notes.empty());
}

TEST_CASE("rollout groups: without num_generations, groups are complete at the end") {
  GroupCollector groups({});
  std::vector<std::string> notes;
  for (const char* name : {"b", "a", "b"}) groups.add(member(name));
  CHECK(groups.num_complete() == 0);
  groups.finish();
  const std::vector<RolloutGroup> taken = groups.take(2, std::nullopt, notes);
  CHECK(names_of_groups(taken) == std::vector<std::string>{"b", "a"});
  CHECK(taken[0].rollouts.size() == 2);
  CHECK(groups.incomplete().empty());
}

TEST_CASE("rollout groups: the bound on the age of rollouts") {
  GroupCollector groups({.num_generations = 2, .max_staleness = 1});
  std::vector<std::string> notes;
  for (const auto& [name, version] : {std::pair("a", 3), {"b", 4}, {"a", 4}, {"b", 5}}) {
    groups.add(member(name, version));
  }
  const std::vector<RolloutGroup> taken = groups.take(1, 5, notes);
  CHECK(names_of_groups(taken) == std::vector<std::string>{"b"});
  CHECK(groups.num_dropped() == 1);
  REQUIRE(notes.size() == 1);
  CHECK(notes[0] ==
        "Dropped 1 group (2 rollouts): a policy_version is below 4, which is 5 updates less "
        "max_staleness 1");
}

TEST_CASE("rollout groups: a batch is the same where later rollouts have arrived already") {
  // A run that is resumed reads the file again, with rollouts that later versions have sampled.
  GroupCollector groups({.num_generations = 1, .max_staleness = 2});
  for (const int64_t version : {0, 4, 5}) {
    groups.add(member(fmt::format("{}", version), version));
  }
  std::vector<std::string> notes;
  CHECK(groups.take(1, 1, notes).front().name == "0");
  CHECK(groups.take(1, 4, notes).front().name == "4");
  CHECK_THROWS_AS(groups.take(1, 4, notes), UserError);
  CHECK(notes.empty());
}

TEST_CASE("rollout groups: versions that cannot be") {
  const auto complaint = [](std::optional<int64_t> version, std::optional<int64_t> most,
                            std::optional<int64_t> now) {
    return complaint_of_groups([&] {
      GroupCollector groups({.num_generations = 1, .max_staleness = most});
      std::vector<std::string> notes;
      groups.add(member("a", version));
      groups.take(1, now, notes);
    });
  };
  CHECK_SAYS(complaint(6, std::nullopt, 5),
             "r.jsonl, a: policy_version is 6, and the policy has had only 5 updates");
  CHECK_SAYS(complaint(std::nullopt, 2, 5), "r.jsonl, a: policy_version is missing");
  CHECK(complaint(std::nullopt, std::nullopt, 5).empty());
  CHECK(complaint(6, std::nullopt, std::nullopt).empty());
  CHECK(complaint(0, std::nullopt, 5).empty());
}

TEST_CASE("rollout groups: links within a group, and ids of a batch") {
  GroupCollector groups({.num_generations = 2});
  std::vector<std::string> notes;
  groups.add(member("a", {}, "2", "1"));  // the parent comes later
  groups.add(member("a", {}, "1"));
  groups.add(member("b", {}, "3", "1"));
  CHECK_SAYS(complaint_of_groups([&] { groups.add(member("b", {}, "4")); }),
             "the parent \"1\" is unknown");
  GroupCollector twice({.num_generations = 1});
  twice.add(member("a", {}, "1"));
  twice.add(member("b", {}, "1"));
  CHECK_SAYS(complaint_of_groups([&] { twice.take(2, std::nullopt, notes); }),
             "the id \"1\" is also that of r.jsonl, a");
}

}  // namespace longspan
