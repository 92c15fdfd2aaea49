#include "longspan/rows/row_numbers.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>

namespace longspan {
namespace {

TEST_CASE("row numbers: made once for equal rows, and kept for as many bytes as may stay") {
  int made = 0;
  const auto numbers = [&](const Packing& packing, RowNumbers what, int64_t size) {
    return row_numbers(packing, what, {size, 0}, at::kCPU, [&] {
      ++made;
      return at::full({packing.num_tokens()}, size, at::kLong);
    });
  };
  const auto of = [](int64_t first) { return Packing::from_lengths({first, 100 - first}); };
  const at::Tensor x = numbers(of(30), RowNumbers::kDocuments, 1);
  CHECK(numbers(of(30), RowNumbers::kDocuments, 1).is_same(x));
  CHECK(made == 1);
  CHECK(!numbers(of(31), RowNumbers::kDocuments, 1).is_same(x));
  CHECK(!numbers(of(30), RowNumbers::kEarlierTokens, 1).is_same(x));
  CHECK(!numbers(of(30), RowNumbers::kDocuments, 2).is_same(x));
  CHECK(made == 4);
  CHECK(numbers(of(30), RowNumbers::kDocuments, 1).is_same(x));
  // Both numbers of a long row stay.
  for (int i = 0; i < 4; ++i) {
    numbers(Packing::single(1'800'000),
            i % 2 == 0 ? RowNumbers::kDocuments : RowNumbers::kEarlierTokens, 0);
  }
  CHECK(made == 6);
  numbers(of(30), RowNumbers::kDocuments, 1);
  made = 4;
  // A row of as many bytes as may stay leaves room for no other, and a longer one is kept alone.
  for (const int64_t more : {0, 1}) {
    const Packing longest = Packing::single((int64_t{1} << 21) + more);
    for (int i = 0; i < 2; ++i) numbers(longest, RowNumbers::kDocuments, 0);
    CHECK(made == 5 + 2 * more);
    numbers(of(30), RowNumbers::kDocuments, 1);
    CHECK(made == 6 + 2 * more);
  }
}

}  // namespace
}  // namespace longspan
