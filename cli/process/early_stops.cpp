#include "cli/process/early_stops.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <cstdio>

#include "cli/process/end_process.h"
#include "cli/process/interrupt_watch.h"
#include "longspan/text/print.h"

namespace longspan {

EarlyStops::EarlyStops(bool speaks) : speaks_(speaks) {
  sigset_t stops;
  sigemptyset(&stops);
  for (const int signal : {SIGTERM, SIGUSR1}) {
    struct sigaction inherited{};
    sigaction(signal, nullptr, &inherited);
    if (inherited.sa_handler != SIG_IGN) sigaddset(&stops, signal);
  }
  signals_ = ::signalfd(-1, &stops, SFD_CLOEXEC | SFD_NONBLOCK);
  end_ = ::eventfd(0, EFD_CLOEXEC);
  if (signals_ >= 0 && end_ >= 0) thread_ = std::thread([this] { watch(); });
}

EarlyStops::~EarlyStops() {
  if (thread_.joinable()) {
    const uint64_t one = 1;
    const ssize_t written = ::write(end_, &one, sizeof(one));
    static_cast<void>(written);  // a write to an eventfd succeeds
    thread_.join();
  }
  if (signals_ >= 0) ::close(signals_);
  if (end_ >= 0) ::close(end_);
}

void EarlyStops::watch() const {
  for (;;) {
    pollfd ready[] = {{signals_, POLLIN, 0}, {end_, POLLIN, 0}};
    if (::poll(ready, 2, /*timeout=*/-1) < 0) continue;
    signalfd_siginfo stop{};
    if (::read(signals_, &stop, sizeof(stop)) == sizeof(stop)) {
      if (speaks_) {
        print_err("\nStopped before the first step ({}): nothing was trained, nothing is lost.\n",
                  name_of_signal(static_cast<int>(stop.ssi_signo)));
      }
      end_process_at_once(0);
    }
    if (ready[1].revents != 0) return;
  }
}

}  // namespace longspan
