#include "longspan/text/print.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "longspan/base/user_error.h"
#include "longspan/text/shown.h"

namespace longspan {
namespace {

constexpr std::string_view kFaint = "\x1b[2m", kPlain = "\x1b[0m";

bool write(std::FILE* stream, std::string_view text) {
  return std::fwrite(text.data(), 1, text.size(), stream) == text.size();
}

/// Ignores write errors: a closed pipe or a full disk of a log must not end a run.
void say(std::FILE* stream, std::string_view text) {
  write(stream, text);
  std::clearerr(stream);
}

}  // namespace

void print_text(std::string_view text) { say(stdout, shown(text)); }

void print_last_words(std::string_view own_text) {
  // If it cannot be written, nothing else can be done.
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, own_text.data(), own_text.size());
}

void print_error_text(std::string_view text) { say(stderr, shown(text)); }

void print_line(std::string_view text) {
  say(stdout, shown(text) + "\n");
  std::fflush(stdout);
  std::clearerr(stdout);
}

void print_faint(std::string_view text) {
  say(stdout, fmt::format("{}{}{}", kFaint, shown(text), kPlain));
}

void print_data(std::string_view bytes) {
  if (write(stdout, bytes) && std::fflush(stdout) == 0) return;
  throw UserError(fmt::format("cannot write to stdout: {}", std::strerror(errno)));
}

}  // namespace longspan
