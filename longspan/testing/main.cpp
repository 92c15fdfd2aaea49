#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include "longspan/models/product.h"

int main(int argc, char** argv) {
  longspan::bound_compiled_products();  // as a run does
  return doctest::Context(argc, argv).run();
}
