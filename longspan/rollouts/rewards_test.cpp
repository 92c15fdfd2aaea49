#include "longspan/rollouts/rewards.h"

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <csignal>
#include <thread>

#include "longspan/base/user_error.h"
#include "longspan/rollouts/user_command.h"
#include "longspan/settings/policy_settings.h"
#include "longspan/testing/tiny_server.h"

namespace longspan {
namespace {

PolicySettings rewards_of(const std::string& names, const std::string& weights = "") {
  PolicySettings settings;
  settings.rewards = names;
  settings.reward_weights = weights;
  settings.max_completion_length = 10;
  return settings;
}

const std::vector<JudgedAnswer> kAnswers = {
    {.prompt = "2 + 2?", .answer = " It is 4. ", .solution = "4", .num_tokens = 5},
    {.prompt = "2 + 2?", .answer = "4\n", .solution = "4", .num_tokens = 1},
    {.prompt = "?", .answer = "none", .solution = "none", .num_tokens = 2}};

TEST_CASE("rewards: exact matches, numbers and lengths, with weights") {
  const Rewards rewards(rewards_of("exact_match,number,length", "1,0.5,-2"));
  const auto made = rewards.of(kAnswers).value();
  CHECK(made[0].at("exact_match") == 0);
  CHECK(made[1].at("exact_match") == 1);
  CHECK(made[0].at("number") == 1);
  CHECK(made[2].at("exact_match") == 1);
  CHECK(made[2].at("number") == 0);  // without a number there is no equal number
  CHECK(made[0].at("length") == -0.5);
  CHECK(rewards.weights().at("number") == 0.5);
}

TEST_CASE("rewards: the last number of a text") {
  CHECK(last_number("x = 1,234.50.") == 1234.5);
  CHECK(last_number("from 3 to -7") == -7);
  CHECK(last_number("3-7") == 7);
  CHECK(last_number("1.2.3") == 3);
  CHECK(std::isnan(last_number("none, at all.")));
}

TEST_CASE("rewards: names and weights that are wrong are named") {
  const auto complaint = [](const PolicySettings& settings) -> std::string {
    try {
      const Rewards rewards(settings);
    } catch (const UserError& error) {
      return error.what();
    }
    return "";
  };
  CHECK(complaint(rewards_of("")).find("rewards is missing") == 0);
  CHECK(complaint(rewards_of("numbers")).find("there is no numbers") != std::string::npos);
  CHECK(complaint(rewards_of("number,number")).find("twice") != std::string::npos);
  CHECK(complaint(rewards_of("number", "1,2")).find("give one for each") != std::string::npos);
  CHECK(complaint(rewards_of("number", "much")).find("not a number") != std::string::npos);
  CHECK(complaint(rewards_of("command")).find("belong together") != std::string::npos);
}

std::string complaint_of(const std::string& command, int64_t timeout = 20) {
  PolicySettings settings = rewards_of("command");
  settings.reward_command = command;
  settings.reward_timeout = timeout;
  try {
    Rewards(settings).of(kAnswers).value();
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

TEST_CASE("rewards: a command gets JSON lines, and its faults are named") {
  PolicySettings settings = rewards_of("command");
  settings.reward_command = "sed 's/.*num_tokens\":\\([0-9]*\\).*/{\"reward\": \\1}/'";
  const auto made = Rewards(settings).of(kAnswers).value();
  CHECK(made[0].at("command") == 5);
  CHECK(made[2].at("command") == 2);
  CHECK(complaint_of("echo oh no >&2; exit 3").find("returned status 3:\noh no") !=
        std::string::npos);
  CHECK(complaint_of("sleep 30 & sleep 30", 1).find("has not ended after 1 s") !=
        std::string::npos);
  CHECK(complaint_of("cat > /dev/null; echo '{\"reward\": 1}'").find("1 reward for 3 answers") !=
        std::string::npos);
  CHECK(complaint_of("cat").find("wanted is {\"reward\": NUMBER}") != std::string::npos);
  CHECK(complaint_of("kill -9 $$").find("signal 9") != std::string::npos);
  CHECK(complaint_of("sed 's/.*/{\"reward\": 1e999}/'") != "");
}

TEST_CASE("rewards: a command has the streams and signals of a shell") {
  const auto output = [](const std::string& command, const std::string& input) {
    return output_of({.key = "k", .command = command, .seconds = 20, .timeout_key = "timeout"},
                     input);
  };
  CHECK(output("cat /dev/stdin", "a\n") == "a\n");
  const auto before = std::signal(SIGPIPE, SIG_DFL);
  // More than a pipe holds, and never read.
  CHECK(output("exec <&-; echo done", std::string(1 << 22, 'x')) == "done\n");
  std::signal(SIGPIPE, SIG_IGN);
  CHECK_THROWS_WITH_AS(output("kill -PIPE $$; echo alive", ""),
                       doctest::Contains("was ended by signal 13"), UserError);
  std::signal(SIGPIPE, before);
}

TEST_CASE("rewards: a regular expression matches the whole answer") {
  const auto rewards_for = [](const std::string& pattern, const std::string& answer) {
    PolicySettings settings = rewards_of("format");
    settings.reward_format = pattern;
    return Rewards(settings)
        .of({{.prompt = "", .answer = answer, .solution = ""}})
        .value()[0]
        .at("format");
  };
  CHECK(rewards_for("<think>[^<]*</think> *[0-9]+", "<think>2 + 2</think> 4") == 1);
  CHECK(rewards_for("<think>[^<]*</think> *[0-9]+", "<think>2 + 2</think> 4.") == 0);
  CHECK(rewards_for("a|b", "ab") == 0);  // the whole pattern, not its last part
  CHECK(rewards_for("a|b", "b") == 1);
  CHECK(rewards_for("^a$", "a") == 1);
  CHECK(rewards_for("a", "a\n") == 0);
  CHECK(rewards_for("a.b", "a\nb") == 0);
  CHECK(rewards_for("(?s)a.b", "a\nb") == 1);
  CHECK(rewards_for(".", "\u00e9") == 1);
  CHECK_THROWS_WITH_AS(rewards_for("(", ""), doctest::Contains("reward_format: "), UserError);
  CHECK_THROWS_WITH_AS(rewards_for("a)|(b", ""), doctest::Contains("unopened group"), UserError);
  CHECK_THROWS_WITH_AS(rewards_for("(?=a)", ""), doctest::Contains("look-around"), UserError);
  CHECK_THROWS_WITH_AS(rewards_for("", ""), doctest::Contains("belong together"), UserError);
}

TEST_CASE("rewards: a service gets a JSON list, and its faults are named") {
  std::string answer;
  std::string request;
  std::atomic<int> pause = 0;
  TinyServer server([&](const std::string& got) {
    std::this_thread::sleep_for(std::chrono::milliseconds(pause.load()));
    request = got;
    return with_status(answer == "busy" ? "503 Busy" : "200 OK", answer);
  });
  PolicySettings settings = rewards_of("http");
  settings.reward_url = server.url;
  settings.reward_timeout = 1;
  answer = "[0.5, 1, -2]";
  const auto made = Rewards(settings).of(kAnswers).value();
  CHECK(made[0].at("http") == 0.5);
  CHECK(made[2].at("http") == -2);
  CHECK(request.ends_with(
      R"({"prompt":"?","completion":"none","solution":"none","num_tokens":2,"truncated":false}])"));
  answer = R"({"rewards": [1, 2, 3], "seconds": 1})";
  CHECK(Rewards(settings).of(kAnswers).value()[1].at("http") == 2);

  const auto complaint = [&](const std::string& text) -> std::string {
    answer = text;
    try {
      Rewards(settings).of(kAnswers).value();
    } catch (const UserError& error) {
      return error.what();
    }
    return "";
  };
  CHECK(complaint("[1, 2]").find("http returned 2 rewards for 3 answers") != std::string::npos);
  CHECK(complaint("[1, 2, null]").find("wanted is a list of numbers") != std::string::npos);
  CHECK(complaint("{\"rewards\": 3}").find("wanted is a list of numbers") != std::string::npos);
  CHECK(complaint("no JSON").find("reward_url " + server.url) == 0);
  CHECK(complaint("[1, 2, 1e999]") != "");
  CHECK(complaint("busy").find(server.url + ": status 503, busy") != std::string::npos);
  pause = 1300;
  CHECK(complaint("[1, 2, 3]").find("no whole answer within 1 s (reward_timeout: 1 s)") !=
        std::string::npos);
}

}  // namespace
}  // namespace longspan
