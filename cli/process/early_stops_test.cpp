#include "cli/process/early_stops.h"

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <functional>

namespace longspan {
namespace {

constexpr int kGoesOn = 7;

/// Returns the end of a process that blocks both signals and runs `work`: its status, or minus the
/// signal.
int end_of(const std::function<void()>& work) {
  const pid_t child = ::fork();
  if (child == 0) {
    sigset_t stops;
    sigemptyset(&stops);
    sigaddset(&stops, SIGTERM);
    sigaddset(&stops, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &stops, nullptr);
    ::alarm(60);  // ends a process that would wait forever
    work();
    _exit(kGoesOn);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

[[noreturn]] void wait_for_the_end() {
  for (;;) ::pause();
}

TEST_CASE("early stops: a held signal ends the process while files are looked at") {
  for (const int signal : {SIGTERM, SIGUSR1}) {
    CHECK(end_of([&] {
            const EarlyStops stops(/*speaks=*/false);
            ::kill(::getpid(), signal);
            wait_for_the_end();
          }) == 0);
    // A signal that came before.
    CHECK(end_of([&] {
            ::kill(::getpid(), signal);
            const EarlyStops stops(/*speaks=*/false);
            wait_for_the_end();
          }) == 0);
  }
}

TEST_CASE("early stops: afterwards signals are held, and those to be ignored are") {
  CHECK(end_of([] {
          {
            const EarlyStops stops(/*speaks=*/false);
          }
          ::kill(::getpid(), SIGTERM);
        }) == kGoesOn);
  CHECK(end_of([] {
          {
            const EarlyStops stops(/*speaks=*/false);
          }
          ::kill(::getpid(), SIGTERM);
          const EarlyStops stops(/*speaks=*/false);
          wait_for_the_end();
        }) == 0);
  CHECK(end_of([] {
          std::signal(SIGTERM, SIG_IGN);
          const EarlyStops stops(/*speaks=*/false);
          ::kill(::getpid(), SIGTERM);
        }) == kGoesOn);
}

}  // namespace
}  // namespace longspan
