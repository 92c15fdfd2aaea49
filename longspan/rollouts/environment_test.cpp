#include "longspan/rollouts/environment.h"

#include <doctest/doctest.h>

#include <chrono>
#include <thread>

#include "longspan/base/user_error.h"

namespace longspan {
namespace {

using Replies = std::optional<std::vector<EnvironmentReply>>;

EnvironmentAnswer answer_number(int64_t number, EndOfTurns end = EndOfTurns::kNone) {
  return {.id = std::to_string(number),
          .prompt = "2 + 2?",
          .solution = "4",
          .turn = number,
          .answer = "\"4\"\n",
          .end = end};
}

/// A shell loop that handles each line, in the variable `line`.
std::string for_each_line(const std::string& command) {
  return "while read -r line; do " + command + "; done";
}

Replies replies_of(const std::string& command, const std::vector<EnvironmentAnswer>& answers,
                   int64_t timeout = 10) {
  Environment environment(command, timeout);
  return environment.replies(answers, {});
}

TEST_CASE("environment: observations and rewards, in the order of the answers, turn after turn") {
  Environment environment(
      for_each_line("case $line in *'\"turn\":0'*) echo '{\"observation\": \"go on\", \"role\": "
                    "\"tool\"}';; *) echo '{\"reward\": 0.5}';; esac"),
      10);
  for (int turn = 0; turn < 2; ++turn) {
    const Replies replies = environment.replies({answer_number(0), answer_number(1)}, {});
    REQUIRE(replies);
    CHECK(replies->at(0).observation == "go on");
    CHECK(replies->at(0).role == "tool");
    CHECK_FALSE(replies->at(0).reward);
    CHECK(replies->at(1).reward == 0.5);
  }
}

TEST_CASE("environment: what the command gets is one line of JSON for each answer") {
  const std::string checks = for_each_line(
      "case $line in '{\"id\":\"3\",\"turn\":3,\"prompt\":\"2 + 2?\",\"solution\":"
      "\"4\",\"answer\":\"\\\"4\\\"\\n\",\"end\":\"max_turns\"}') echo '{\"reward\": "
      "1}';; *) echo \"$line\";; esac");
  CHECK(replies_of(checks, {answer_number(3, EndOfTurns::kTurns)})->at(0).reward == 1.0);
}

TEST_CASE("environment: faults of the command are named, with its last words") {
  const auto fault = [](const std::string& command,
                        EndOfTurns end = EndOfTurns::kNone) -> std::string {
    try {
      replies_of(command, {answer_number(0, end)}, 1);
    } catch (const UserError& error) {
      return error.what();
    }
    return "no error";
  };
  const auto says = [](const std::string& text, const std::string& part) {
    CHECK_MESSAGE(text.find(part) != std::string::npos, text);
  };
  says(fault("echo bad >&2; exit 3"),
       "ended (it returned status 3), with 0 of 1 replies written:\nbad");
  says(fault("exec >&-; exec 2>&-; sleep 60"), "ended (it was ended by signal 9)");
  says(fault("sleep 60"), "0 of 1 replies after 1 s (reward_timeout)");
  says(fault(for_each_line("echo hello")), "hello, which is no JSON object");
  says(fault(for_each_line("echo '{\"reward\": \"1\"}'")), "not a finite number");
  says(fault(for_each_line("echo '{\"reward\": 1e999}'")), "environment_command");
  says(fault(for_each_line("echo '{\"observation\": \"a\"}'")), "wanted is");
  says(fault(for_each_line("echo '{\"observation\": \"a\", \"role\": \"system\"}'")), "wanted is");
  says(fault(for_each_line("echo '{\"observation\": \"a\", \"role\": \"tool\"}'"),
             EndOfTurns::kTruncated),
       "has ended (truncated); wanted is a reward");
  Environment extra("echo '{\"reward\": 1}'; sleep 60", 1);
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  CHECK_THROWS_WITH_AS(extra.replies({answer_number(0)}, {}),
                       doctest::Contains("without an answer"), UserError);
}

}  // namespace
}  // namespace longspan
