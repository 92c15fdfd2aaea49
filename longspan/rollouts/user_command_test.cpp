#include "longspan/rollouts/user_command.h"

#include <doctest/doctest.h>
#include <signal.h>

#include <chrono>
#include <cstdlib>
#include <optional>
#include <string>

#include "longspan/base/user_error.h"

namespace longspan {
namespace {

std::string output_of_command(const std::string& command, bool may_leave_processes = false,
                              double seconds = 20) {
  return output_of({.key = "k",
                    .command = command,
                    .seconds = seconds,
                    .timeout_key = "timeout",
                    .environment = {{"GIVEN", "1"}},
                    .may_leave_processes = may_leave_processes},
                   "")
      .value();
}

/// Sets a variable of this process, and restores it.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) {
    if (const char* before = std::getenv(name)) before_ = before;
    setenv(name, value, 1);
  }
  ~Variable() {
    if (before_) {
      setenv(name_, before_->c_str(), 1);
    } else {
      unsetenv(name_);
    }
  }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* name_;
  std::optional<std::string> before_;
};

TEST_CASE("user command: it is no rank, and gets all other variables") {
  const Variable own("LONGSPAN_TEST_OWN", "1"), threads("OMP_NUM_THREADS", "3"), rank("RANK", "1"),
      local("LOCAL_RANK", "1"), size("WORLD_SIZE", "2"), local_size("LOCAL_WORLD_SIZE", "2"),
      address("MASTER_ADDR", "a"), port("MASTER_PORT", "1"), group("GROUP_RANK", "0"),
      role("ROLE_NAME", "default"), mpi("OMPI_COMM_WORLD_RANK", "1"), given("GIVEN", "0");
  const auto environment = [] { return "\n" + output_of_command("env"); };
  const auto has = [](const std::string& text, const std::string& line) {
    return text.find("\n" + line) != std::string::npos;
  };
  const std::string plain = environment();
  CHECK(has(plain, "LONGSPAN_TEST_OWN=1\n"));
  CHECK(has(plain, "GIVEN=1\n"));
  CHECK_FALSE(has(plain, "GIVEN=0"));
  CHECK(has(plain, "OMP_NUM_THREADS=3\n"));
  for (const char* name : {"RANK=", "LOCAL_RANK=", "WORLD_SIZE=", "LOCAL_WORLD_SIZE=",
                           "MASTER_ADDR=", "MASTER_PORT=", "GROUP_RANK=", "ROLE_NAME=", "OMPI_"}) {
    CHECK_MESSAGE(!has(plain, name), std::string(name));
  }
  // torchrun, or `longspan train` for it, chooses the threads of its ranks.
  const Variable run("TORCHELASTIC_RUN_ID", "none");
  const std::string by_torchrun = environment();
  CHECK(has(by_torchrun, "LONGSPAN_TEST_OWN=1\n"));
  CHECK_FALSE(has(by_torchrun, "OMP_NUM_THREADS="));
  CHECK_FALSE(has(by_torchrun, "TORCHELASTIC_"));
}

TEST_CASE("user command: a process that it leaves with its streams goes on") {
  const auto begin = std::chrono::steady_clock::now();
  // More text than a pipe holds, and the number of the process.
  const std::string text =
      output_of_command("sleep 60 & head -c 200000 /dev/zero | tr '\\0' x; echo; echo $!",
                        /*may_leave_processes=*/true);
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(15));
  REQUIRE(text.size() > 200001);
  const pid_t left = std::stoi(text.substr(200001));
  CHECK(kill(left, 0) == 0);
  kill(left, SIGKILL);
  CHECK_THROWS_WITH_AS(output_of_command("sleep 2 & echo no >&2; exit 3", true),
                       doctest::Contains("returned status 3:\nno"), UserError);
  // Otherwise the process may have output that counts.
  CHECK(output_of_command("(sleep 0.5; echo late) & exit 0") == "late\n");
  CHECK_THROWS_WITH_AS(output_of_command("sleep 60 & exit 0", false, 1),
                       doctest::Contains("has not ended after 1 s"), UserError);
}

}  // namespace
}  // namespace longspan
