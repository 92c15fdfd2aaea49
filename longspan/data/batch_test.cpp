#include "longspan/data/batch.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>

namespace longspan {

namespace {

std::vector<int64_t> values(const at::Tensor& x_T) {
  const int64_t* data = x_T.const_data_ptr<int64_t>();
  return {data, data + x_T.numel()};
}

const Sample kFirst{{5, 6, 7, 8}, {-100, -100, 7, 8}};
const Sample kSecond{{9, 10}, {9, 10}};  // a label at position 0 predicts nothing
const Sample kThird{{11}, {11}};

}  // namespace

TEST_CASE("collate: labels are shifted inside each document, positions restart") {
  const Batch row = collate({&kFirst, &kSecond, &kThird});
  CHECK(values(row.tokens_T) == std::vector<int64_t>{5, 6, 7, 8, 9, 10, 11});
  CHECK(values(row.labels_T) == std::vector<int64_t>{-100, 7, 8, -100, 10, -100, -100});
  CHECK(values(row.positions_T) == std::vector<int64_t>{0, 1, 2, 3, 0, 1, 0});
  CHECK(values(row.documents_T) == std::vector<int64_t>{0, 0, 0, 0, 1, 1, 2});
  CHECK(row.packing == Packing::from_lengths({4, 2, 1}));
  CHECK(count_labels(row) == 3);
}

TEST_CASE("collate: no samples give an empty row") {
  const Batch row = collate({});
  CHECK(row.tokens_T.numel() == 0);
  CHECK(row.packing.num_documents() == 0);
  CHECK(count_labels(row) == 0);
}

TEST_CASE("shard: shares of a row hold each label once, padding holds none") {
  const Batch row = collate({&kFirst, &kSecond});
  const Packing padded = Packing::from_lengths({4, 2, 2});
  const Batch one = shard(row, {padded, {0, 3, 4, -1}});
  const Batch two = shard(row, {padded, {1, 2, 5, -1}});
  CHECK(values(one.tokens_T) == std::vector<int64_t>{5, 8, 9, 0});
  CHECK(values(one.labels_T) == std::vector<int64_t>{-100, -100, 10, -100});
  CHECK(values(one.positions_T) == std::vector<int64_t>{0, 3, 0, 0});
  CHECK(values(one.documents_T) == std::vector<int64_t>{0, 0, 1, -1});
  CHECK(values(two.labels_T) == std::vector<int64_t>{7, 8, -100, -100});
  CHECK(one.packing == padded);
  CHECK(count_labels(one) + count_labels(two) == count_labels(row));
}

}  // namespace longspan
