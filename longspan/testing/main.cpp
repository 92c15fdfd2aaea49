#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include "longspan/kernels/gemm.h"

int main(int argc, char** argv) {
  longspan::bound_compiled_gemms();  // as a run does
  return doctest::Context(argc, argv).run();
}
