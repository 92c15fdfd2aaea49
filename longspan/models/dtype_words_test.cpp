#include "longspan/models/dtype_words.h"

#include <doctest/doctest.h>

namespace longspan {

TEST_CASE("dtypes: each has a long name and a short one, and is found by both") {
  CHECK(long_name_of(c10::ScalarType::BFloat16) == "bfloat16");
  CHECK(short_name_of(c10::ScalarType::BFloat16) == "bf16");
  for (const c10::ScalarType dtype : {c10::ScalarType::Float, c10::ScalarType::BFloat16,
                                      c10::ScalarType::Half, c10::ScalarType::Double}) {
    CHECK(dtype_named(long_name_of(dtype)) == dtype);
    CHECK(dtype_named(short_name_of(dtype)) == dtype);
  }
  for (const char* word : {"", "auto", "float", "int8", "BF16"}) CHECK(!dtype_named(word));
  CHECK_THROWS(long_name_of(c10::ScalarType::Int));
}

}  // namespace longspan
