#include "longspan/rows/packing.h"

#include <doctest/doctest.h>

#include <stdexcept>

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

TEST_CASE("packing: forks belong to a document and lie inside of it") {
  const Packing packing = Packing::from_documents({{3}, {7, Fork{2, 5}}, {1}});
  CHECK(packing.boundaries() == std::vector<int64_t>{0, 3, 10, 11});
  CHECK(packing.has_forks());
  CHECK_FALSE(packing.fork(0).has_value());
  CHECK((packing.fork(1) == Fork{2, 5}));
  CHECK(Packing::from_documents(packing.documents()) == packing);
  CHECK_FALSE(packing == Packing::from_lengths({3, 7, 1}));
  CHECK_FALSE(packing == Packing::from_documents({{3}, {7, Fork{2, 4}}, {1}}));
  CHECK(Packing::from_documents({{3}, {4}}) == Packing::from_lengths({3, 4}));
  CHECK_FALSE(Packing::single(7).has_forks());
  for (const Fork wrong : {Fork{0, 2}, {2, 2}, {3, 2}, {2, 7}}) {
    CHECK_THROWS_AS(Packing::from_documents({{7, wrong}}), std::logic_error);
  }
}

}  // namespace longspan
