#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include "cli/process/resources.h"

int main(int argc, char** argv) {
  // Like a run.
  longspan::bound_compiled_gemms();
  longspan::quiet_c10d();
  return doctest::Context(argc, argv).run();
}
