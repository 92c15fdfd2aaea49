#include "longspan/text/counted.h"

#include <doctest/doctest.h>

namespace longspan {

TEST_CASE("counted: one is singular, everything else plural") {
  CHECK(counted(1, "row") == "1 row");
  CHECK(counted(0, "row") == "0 rows");
  CHECK(counted(2, "row") == "2 rows");
  CHECK(counted(1234567, "token") == "1,234,567 tokens");
  CHECK(counted(1, "process") == "1 process");
  CHECK(counted(3, "process") == "3 processes");
  CHECK(counted(2, "query") == "2 queries");
  CHECK(counted(2, "day") == "2 days");
  CHECK(noun_of(1, "GPU") == "GPU");
  CHECK(noun_of(4, "batch") == "batches");
}

}  // namespace longspan
