#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include "cli/process/resources.h"

int main(int argc, char** argv) {
  longspan::bound_compiled_gemms();  // as a run does
  return doctest::Context(argc, argv).run();
}
