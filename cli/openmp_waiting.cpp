// OpenMP's threads spin for some milliseconds before they sleep, and take their core from other
// work: a neighbouring process, or the one thread that they wait for. So the commands that compute
// limit the spinning to less than a millisecond, unless the user has configured it. OpenMP's
// runtime reads its variables when it is loaded, before main(), so the program restarts itself with
// them set. This happens in the first initializer, before those of the libraries. Workers inherit
// the variables and need no restart.
#include <alloca.h>
#include <limits.h>
#include <sys/auxv.h>
#include <unistd.h>

#include <algorithm>
#include <string_view>

namespace longspan {
namespace {

constexpr std::string_view kCommands[] = {"train", "bench", "chat", "generate"};
/// Each of these configures how threads wait.
constexpr std::string_view kVariables[] = {"GOMP_SPINCOUNT=", "OMP_WAIT_POLICY=", "KMP_BLOCKTIME="};

// GNU's runtime, which torch brings, counts turns; others only have a policy. This number of turns
// takes 0.2 to 0.5 ms. Threads that sleep at once (100 turns) cost an idle machine a tenth of its
// speed; the runtime's default of 300,000 costs a busy machine a third; this value costs 2 and 5 %.
char spin_count[] = "GOMP_SPINCOUNT=10000";
char wait_policy[] = "OMP_WAIT_POLICY=passive";

/// The C library is not initialized yet: no getenv(), no allocation.
[[maybe_unused]] void start_without_spinning(int argc, char** argv, char** environment) {
  // If the program was started as `ld.so longspan ...`, the process is the loader itself: the
  // kernel has loaded no other one, and /proc/self/exe is the loader.
  if (getauxval(AT_BASE) == 0) return;
  if (argc < 2 || std::ranges::find(kCommands, argv[1]) == std::end(kCommands)) return;
  size_t size = 0;
  for (; environment[size] != nullptr; ++size) {
    const std::string_view entry = environment[size];
    if (std::ranges::any_of(kVariables, [&](auto name) { return entry.starts_with(name); })) return;
  }
  char program[PATH_MAX];
  const ssize_t length = readlink("/proc/self/exe", program, sizeof(program) - 1);
  if (length < 0) return;
  program[length] = '\0';
  auto** const all = static_cast<char**>(alloca((size + 3) * sizeof(char*)));
  char** const end = std::copy(environment, environment + size, all);
  end[0] = spin_count;
  end[1] = wait_policy;
  end[2] = nullptr;
  execve(program, argv, all);  // if it fails, the program continues and its threads spin
}

#if defined(__SANITIZE_ADDRESS__)  // GCC's macro
#define LONGSPAN_ADDRESS_SANITIZER
#elif defined(__has_feature)  // clang's
#if __has_feature(address_sanitizer)
#define LONGSPAN_ADDRESS_SANITIZER
#endif
#endif

#ifndef LONGSPAN_ADDRESS_SANITIZER  // its runtime is not there yet
using Initialiser = void(int argc, char** argv, char** environment);
[[gnu::used, gnu::section(".preinit_array")]] Initialiser* const kFirst = start_without_spinning;
#endif

}  // namespace
}  // namespace longspan
