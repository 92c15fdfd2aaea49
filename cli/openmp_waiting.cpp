// OpenMP's threads spin some milliseconds for the next piece of work before they sleep, and keep
// from its core whatever else computes there: a neighbour's process, or the one thread that they
// wait for. So the commands that compute let them spin for less than a millisecond, unless the user
// has said how they are to wait. OpenMP's runtime reads its variables when it is loaded, before
// main(), so the program starts itself again with them set: as the first of all initialisers,
// before those of the libraries take their time. Workers inherit the variables, and start once.
#include <alloca.h>
#include <limits.h>
#include <sys/auxv.h>
#include <unistd.h>

#include <algorithm>
#include <string_view>

namespace longspan {
namespace {

constexpr std::string_view kCommands[] = {"train", "bench", "chat", "generate"};
/// Any of them says how threads wait.
constexpr std::string_view kVariables[] = {"GOMP_SPINCOUNT=", "OMP_WAIT_POLICY=", "KMP_BLOCKTIME="};

// GNU's runtime, which torch brings, counts; others know the policy alone. So many turns are 0.2 to
// 0.5 ms: threads that sleep at once (100) cost a machine with nothing else to do a tenth of its
// speed, the runtime's own 300,000 cost one whose cores are busy a third; this costs 2 and 5 %.
char spin_count[] = "GOMP_SPINCOUNT=10000";
char wait_policy[] = "OMP_WAIT_POLICY=passive";

/// The C library is not initialised yet: no getenv(), nothing allocated.
[[maybe_unused]] void start_without_spinning(int argc, char** argv, char** environment) {
  // Started as `ld.so longspan ...`, the process is the loader's: the kernel has loaded no other,
  // and /proc/self/exe names it.
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
  execve(program, argv, all);  // where it fails, the program goes on, and its threads spin
}

#if defined(__SANITIZE_ADDRESS__)  // GCC's way to say it
#define LONGSPAN_ADDRESS_SANITIZER
#elif defined(__has_feature)  // clang's
#if __has_feature(address_sanitizer)
#define LONGSPAN_ADDRESS_SANITIZER
#endif
#endif

#ifndef LONGSPAN_ADDRESS_SANITIZER  // whose runtime is not there yet
using Initialiser = void(int argc, char** argv, char** environment);
[[gnu::used, gnu::section(".preinit_array")]] Initialiser* const kFirst = start_without_spinning;
#endif

}  // namespace
}  // namespace longspan
