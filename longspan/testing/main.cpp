#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <csignal>

#include "cli/process/resources.h"

int main(int argc, char** argv) {
  // Like a run. Gloo writes to sockets without MSG_NOSIGNAL: a rank that ends first would end this
  // process.
  std::signal(SIGPIPE, SIG_IGN);
  longspan::bound_compiled_gemms();
  longspan::quiet_c10d();
  return doctest::Context(argc, argv).run();
}
