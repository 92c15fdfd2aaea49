#include "longspan/data/packing.h"

#include <doctest/doctest.h>

namespace longspan {

TEST_CASE("packing: boundaries of documents") {
  const Packing packing = Packing::from_lengths({3, 1, 5});
  CHECK(packing.num_documents() == 3);
  CHECK(packing.num_tokens() == 9);
  CHECK(packing.boundaries() == std::vector<int64_t>{0, 3, 4, 9});
  for (int64_t document = 0; document < 3; ++document) {
    CHECK(packing.begin(document) + packing.length(document) == packing.end(document));
  }
  CHECK(packing.length(2) == 5);
}

TEST_CASE("packing: one document, no document, equality") {
  CHECK(Packing::single(7) == Packing::from_lengths({7}));
  CHECK_FALSE(Packing::single(7) == Packing::from_lengths({3, 4}));
  CHECK(Packing::from_lengths({}).num_documents() == 0);
  CHECK(Packing::from_lengths({}).num_tokens() == 0);
}

}  // namespace longspan
