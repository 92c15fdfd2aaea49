// Memory that the host must not access: device memory at any time, pinned memory until the host has
// waited.
#include <execinfo.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdint>

#include "longspan/testing/accelerator/findings.h"
#include "longspan/testing/accelerator/machine.h"

namespace longspan::testing::accelerator {
namespace {

char* page_down(char* at) {
  return reinterpret_cast<char*>(reinterpret_cast<uintptr_t>(at) / kPage * kPage);
}
char* page_up(char* at) { return page_down(at + kPage - 1); }

struct sigaction before;

void on_fault(int signal, siginfo_t* info, void* context) {
#if defined(__x86_64__)
  constexpr greg_t kIsWrite = 2;  // bit in the error code of a page fault
  const bool writes =
      (static_cast<const ucontext_t*>(context)->uc_mcontext.gregs[REG_ERR] & kIsWrite) != 0;
#else
  const bool writes = false;
#endif
  if (Machine::get().tell_of_touch(info->si_addr, writes)) _exit(kFaultStatus);
  if ((before.sa_flags & SA_SIGINFO) != 0) return before.sa_sigaction(signal, info, context);
  if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) {
    return before.sa_handler(signal);
  }
  std::signal(signal, SIG_DFL);
  raise(signal);
}

}  // namespace

void catch_touches() {
  struct sigaction now{};
  sigaction(SIGSEGV, nullptr, &now);
  if ((now.sa_flags & SA_SIGINFO) != 0 && now.sa_sigaction == on_fault) return;
  struct sigaction action{};
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigemptyset(&action.sa_mask);
  sigaction(SIGSEGV, &action, &before);
}

void Machine::hold_pinned(const Launched& launched, const Use& use, bool known) {
  const std::lock_guard lock(mutex_);
  Allocation* const block = memory_.find(use.front);
  auto* begin = const_cast<char*>(static_cast<const char*>(use.front));
  char* end = begin + use.size;
  // Pages that hold other bytes of the allocation stay accessible.
  begin = page_up(begin);
  end = end >= block->front + block->requested ? page_up(end) : page_down(end);
  if (begin >= end) begin = end;
  held_.push_back({block, begin, end, use.writes ? PROT_NONE : PROT_READ, launched.stream,
                   launched.count, launched.name, known});
  protect_pinned(begin, end);
}

void Machine::release_pinned() {
  std::vector<Held> over;
  std::erase_if(held_, [&](const Held& held) {
    const bool is_over = host_.covers(held.stream, held.launch);
    if (is_over) over.push_back(held);
    return is_over;
  });
  for (const Held& held : over) protect_pinned(held.begin, held.end);
}

// With the protection that all copies in progress there allow.
void Machine::protect_pinned(const char* begin, const char* end) const {
  const Window& window = memory_.window_of_pinned();
  if (begin >= end) return;
  window.protect(begin, static_cast<size_t>(end - begin), PROT_READ | PROT_WRITE);
  for (const int protection : {PROT_READ, PROT_NONE}) {
    for (const Held& held : held_) {
      const char *from = std::max<const char*>(begin, held.begin),
                 *to = std::min<const char*>(end, held.end);
      if (held.protection == protection && from < to) {
        window.protect(from, static_cast<size_t>(to - from), protection);
      }
    }
  }
}

bool Machine::tell_of_touch(const void* address, bool writes) const noexcept {
  if (!memory_.is_of_device(address) && !memory_.is_pinned(address)) return false;
  // Without the lock, which this thread may hold; the process ends in any case.
  const Allocation* const block = memory_.find(address);
  std::string why;
  if (memory_.is_of_device(address)) {
    why = "which is memory of a device";
  } else {
    for (const Held& held : held_) {
      if (held.begin <= address && address < held.end && held.protection == PROT_NONE) {
        why = fmt::format("which {} (launch {} on {}) writes: the host has not waited for it",
                          held.by, held.launch, stream_text(held.stream));
      } else if (held.begin <= address && address < held.end && why.empty()) {
        why = fmt::format("which {} (launch {} on {}) reads: the host has not waited for it",
                          held.by, held.launch, stream_text(held.stream));
      }
    }
  }
  const std::string text = fmt::format(
      "error: simulated accelerator: the host {} {}{}, {}\nIt was allocated at\n",
      writes ? "writes" : "reads", block != nullptr ? block->text() : "memory of nobody",
      block != nullptr && !block->live ? " (freed)" : "", why);
  static_cast<void>(!write(STDERR_FILENO, text.data(), text.size()));
  if (block != nullptr) {
    backtrace_symbols_fd(block->made_at.data(), block->made_at_depth, STDERR_FILENO);
  }
  return true;
}

}  // namespace longspan::testing::accelerator
