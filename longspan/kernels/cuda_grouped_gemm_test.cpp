// Gemms of rows sorted by expert on GPU kernels, against fp64. Tolerance: products of bf16 are
// exact in fp32, so a sum of n terms has an error of at most n roundings of the sum of their sizes.
// A bf16 result is rounded once more.
#include "longspan/kernels/grouped_gemm.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <cstdint>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "longspan/cuda/rows/arguments.h"
#include "longspan/testing/gpu_check.h"
#include "longspan/testing/planted_waits.h"

namespace longspan {
namespace {

using testing::AnyKernels;
using testing::on_gpu;
using testing::wide;

constexpr double kRounding = 0x1p-24, kBf16Rounding = 0x1p-8;

at::Tensor random(at::IntArrayRef sizes, at::ScalarType dtype) {
  return testing::random(sizes, dtype, /*is_aligned=*/true);
}

/// Experts with several tiles, one tile, one row and none; rows in other places.
struct Case {
  std::vector<int64_t> counts{5, 0, 130, 1, 128, 0, 40};
  int64_t S = std::accumulate(counts.begin(), counts.end(), int64_t{0}), E = std::ssize(counts);
  SortedRows sorted = grouped::sort_out(at::tensor(counts, on_gpu(at::kLong)), S);
  at::Tensor from_S = at::randint(0, 50, {S}, on_gpu(at::kLong)),
             to_S = at::randperm(S, on_gpu(at::kLong));

  /// Calls use(group, begin, count).
  template <typename Use>
  void for_each(Use&& use) const {
    int64_t begin = 0;
    for (int64_t e = 0; e < E; ++e) {
      use(e, begin, counts[e]);
      begin += counts[e];
    }
  }
  std::vector<at::Tensor> matrices(at::IntArrayRef sizes, at::ScalarType dtype) const {
    std::vector<at::Tensor> made;
    for (int64_t e = 0; e < E; ++e) made.push_back(random(sizes, dtype));
    return made;
  }
};

/// Numbers in fp64, and for each the sum of the sizes of its terms.
struct Exact {
  at::Tensor sum, sizes;
};

/// Also takes a bf16 result. `summed`: the number of terms of each sum.
void check(const at::Tensor& actual, const Exact& exact, int64_t summed) {
  const double rounding = actual.scalar_type() == at::kBFloat16 ? kBf16Rounding : 0.0;
  const at::Tensor allowed =
      exact.sum.abs() * rounding + exact.sizes * static_cast<double>(summed + 4) * kRounding;
  CHECK((wide(actual) - exact.sum).abs().le(allowed).all().item<bool>());  // false for NaN
}

struct Factor {
  at::Tensor x;
  bool is_picked;
  std::vector<at::Tensor> matrices;
};

Exact exact_rows(const Case& c, const std::vector<Factor>& factors,
                 const std::vector<at::Tensor>& biases, bool transposed, double scale,
                 int64_t columns) {
  Exact exact{at::zeros({c.S, columns}, on_gpu(at::kDouble)),
              at::zeros({c.S, columns}, on_gpu(at::kDouble))};
  for (const Factor& factor : factors) {
    const at::Tensor x = wide(factor.is_picked ? factor.x.index_select(0, c.from_S) : factor.x);
    c.for_each([&](int64_t e, int64_t begin, int64_t count) {
      at::Tensor w = wide(factor.matrices[e].to(at::kBFloat16));
      if (!transposed) w = w.t();
      exact.sum.narrow(0, begin, count).addmm_(x.narrow(0, begin, count), w, 1, scale);
      exact.sizes.narrow(0, begin, count)
          .addmm_(x.narrow(0, begin, count).abs(), w.abs(), 1, scale);
    });
  }
  if (biases.empty()) return exact;
  c.for_each([&](int64_t e, int64_t begin, int64_t count) {
    exact.sum.narrow(0, begin, count).add_(wide(biases[e]));
    exact.sizes.narrow(0, begin, count).add_(wide(biases[e]).abs());
  });
  return exact;
}

TEST_CASE("cuda rows: groups are found out of their counts") {
  const AnyKernels kernels;
  const Case c;
  std::vector<int64_t> begins{0};
  for (const int64_t count : c.counts) begins.push_back(begins.back() + count);
  CHECK(at::equal(c.sorted.begins.cpu(), at::tensor(begins, at::kLong)));
  const std::vector<int64_t> tiles{0, 2, 2, 3, 4, 6};  // and none after them
  const at::Tensor groups = c.sorted.tile_groups.cpu();
  for (int64_t i = 0; i < groups.size(0); ++i) {
    const auto tile = static_cast<size_t>(i);
    CHECK(groups[i].item<int64_t>() == (tile < tiles.size() ? tiles[tile] : c.E));
  }
}

TEST_CASE("cuda rows: each row times the matrix of its group, and its input gradient") {
  const AnyKernels kernels;
  at::manual_seed(11);
  const Case c;
  for (const at::ScalarType dtype : {at::kBFloat16, at::kFloat}) {
    for (const bool transposed : {false, true}) {
      for (const auto& [depth, columns] :
           {std::pair<int64_t, int64_t>{232, 136}, {8, 8}, {40, 264}}) {
        CAPTURE(transposed);
        CAPTURE(depth);
        CAPTURE(columns);
        const auto shape = [&](int64_t d) {
          return transposed ? std::vector<int64_t>{d, columns} : std::vector<int64_t>{columns, d};
        };
        // A second product like an adapter's, in fp32, with rows in their own order.
        const std::vector<Factor> factors{
            {random({50, depth}, at::kBFloat16), true, c.matrices(shape(depth), dtype)},
            {random({c.S, 16}, at::kBFloat16), false, c.matrices(shape(16), at::kFloat)}};
        const std::vector<at::Tensor> biases = c.matrices({columns}, dtype);
        for (const size_t num_factors : {1, 2}) {
          CAPTURE(num_factors);
          GroupTable table(c.sorted.begins.device());
          for (size_t i = 0; i < num_factors; ++i) table.add(factors[i].matrices);
          const size_t bias = table.add(biases);
          table.send();
          std::vector<GroupedOperands> operands;
          for (size_t i = 0; i < num_factors; ++i) {
            operands.push_back(
                {{factors[i].x, factors[i].is_picked ? c.from_S : at::Tensor()}, table.at(i)});
          }
          const bool has_bias = !transposed && num_factors == 2, goes = num_factors == 1;
          at::Tensor y = testing::room({c.S, columns}, at::kBFloat16, true);
          const at::Tensor to = goes ? c.to_S : at::Tensor();
          if (transposed) {
            grouped::input_gradient_out(y, to, c.sorted, operands, 0.5);
          } else {
            grouped::forward_out(y, to, c.sorted, operands,
                                 has_bias ? std::optional(table.at(bias)) : std::nullopt, 0.5);
          }
          const std::vector<Factor> used(factors.begin(),
                                         factors.begin() + static_cast<int64_t>(num_factors));
          check(goes ? y.index_select(0, c.to_S) : y,
                exact_rows(c, used, has_bias ? biases : std::vector<at::Tensor>{}, transposed, 0.5,
                           columns),
                depth + 16);
        }
      }
    }
  }
}

TEST_CASE("cuda rows: the gradients of each group's matrix and bias") {
  const AnyKernels kernels;
  at::manual_seed(12);
  const Case c;
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const auto& [rows, columns] : {std::pair<int64_t, int64_t>{136, 264}, {8, 16}}) {
      CAPTURE(rows);
      CAPTURE(columns);
      const at::Tensor dy = random({50, rows}, at::kBFloat16),
                       x = random({c.S, columns}, at::kBFloat16),
                       weights = random({c.S}, at::kFloat);
      const std::vector<at::Tensor> gradients = c.matrices({rows, columns}, dtype),
                                    bias_gradients = c.matrices({rows}, dtype);
      std::vector<at::Tensor> before, bias_before;
      for (const at::Tensor& g : gradients) before.push_back(g.clone());
      for (const at::Tensor& g : bias_gradients) bias_before.push_back(g.clone());
      GroupTable table(c.sorted.begins.device());
      table.add(gradients);
      table.add(bias_gradients);
      table.send();
      grouped::add_matrix_gradients(table.at(0), c.sorted, {dy, c.from_S}, {x});
      grouped::add_bias_gradients(table.at(1), c.sorted, {dy, c.from_S}, weights);
      c.for_each([&](int64_t e, int64_t begin, int64_t count) {
        CAPTURE(e);
        if (count == 0) {
          CHECK(at::equal(gradients[e], before[e]));
          CHECK(at::equal(bias_gradients[e], bias_before[e]));
          return;
        }
        const at::Tensor a = wide(dy.index_select(0, c.from_S.narrow(0, begin, count))),
                         b = wide(x.narrow(0, begin, count)), was = wide(before[e]);
        check(gradients[e], {was + a.t().mm(b), was.abs() + a.abs().t().mm(b.abs())}, count);
        const at::Tensor weighed = a * wide(weights.narrow(0, begin, count)).unsqueeze(1),
                         bias_was = wide(bias_before[e]);
        check(bias_gradients[e], {bias_was + weighed.sum(0), bias_was.abs() + weighed.abs().sum(0)},
              2 * count);
      });
    }
  }
}

TEST_CASE("cuda rows: products of rows in groups, and sums over the groups of a row") {
  const AnyKernels kernels;
  at::manual_seed(13);
  const Case c;
  for (const int64_t columns : {8, 200}) {
    const at::Tensor x = random({50, columns}, at::kBFloat16),
                     y = random({c.S, columns}, at::kBFloat16);
    const std::vector<at::Tensor> vectors = c.matrices({columns}, at::kBFloat16);
    GroupTable table(c.sorted.begins.device());
    table.add(vectors);
    table.send();
    at::Tensor dots = testing::room({c.S}, at::kFloat, true);
    grouped::dots_out(dots, c.to_S, c.sorted, {x, c.from_S}, y);
    const at::Tensor picked = wide(x.index_select(0, c.from_S)), operands = picked * wide(y);
    Exact exact{operands.sum(1), operands.abs().sum(1)};
    check(dots.index_select(0, c.to_S), exact, columns);
    at::Tensor in_place = testing::room({c.S}, at::kFloat, true);
    grouped::dots_out(in_place, {}, c.sorted, {x, c.from_S}, y);
    CHECK(at::equal(in_place, dots.index_select(0, c.to_S)));
    grouped::add_dots_(dots, c.to_S, c.sorted, {x, c.from_S}, table.at(0));
    c.for_each([&](int64_t e, int64_t begin, int64_t count) {
      const at::Tensor more = picked.narrow(0, begin, count) * wide(vectors[e]);
      exact.sum.narrow(0, begin, count).add_(more.sum(1));
      exact.sizes.narrow(0, begin, count).add_(more.abs().sum(1));
    });
    check(dots.index_select(0, c.to_S), exact, 2 * columns);

    const at::Tensor y_CKD = y.narrow(0, 0, 300).view({100, 3, columns}),
                     weights = random({100, 3}, at::kFloat),
                     before = random({100, columns}, at::kFloat);
    for (const bool weighed : {true, false}) {
      const at::Tensor sum = before.clone();
      at::Tensor to = sum;
      grouped::combine_(to, y_CKD, weighed ? weights : at::Tensor());
      at::Tensor parts = wide(y_CKD);
      if (weighed) parts = parts * wide(weights).unsqueeze(2);
      check(sum, {wide(before) + parts.sum(1), wide(before).abs() + parts.abs().sum(1)}, 6);
    }
  }
}

/// Starts nothing, and keeps the last launch.
class Launches : public cuda::Kernels {
 public:
  explicit Launches(int shared_bytes) : shared_bytes_(shared_bytes) {}
  int num_multiprocessors() const override { return 1; }
  int shared_bytes() const override { return shared_bytes_; }
  cuda::Launch last;

 protected:
  void start(const std::string&, const cuda::Launch& launch, const void*) override {
    last = launch;
  }

 private:
  int shared_bytes_;
};

struct SmallCase {
  int64_t S = 300, D = 200, I = 136;
  at::Tensor counts = at::tensor({int64_t{170}, int64_t{0}, int64_t{130}}),
             x = at::randn({S, D}).to(at::kBFloat16), dy = at::randn({S, I}).to(at::kBFloat16);

  /// Returns y, dx and the gradients, by these kernels.
  std::vector<at::Tensor> results(cuda::Kernels& kernels, at::ScalarType dtype) const {
    const cuda::WithKernels lent(kernels);
    at::manual_seed(3);
    const at::Tensor matrices = at::randn({3, I, D}).to(dtype), gradients = at::zeros({3, I, D}),
                     bias_gradients = at::zeros({3, I});
    GroupTable table(at::kCPU);
    table.add(matrices.unbind(0));
    table.add(gradients.unbind(0));
    table.add(bias_gradients.unbind(0));
    table.send();
    const SortedRows sorted = grouped::sort_out(counts, S);
    at::Tensor y = at::zeros({S, I}, x.options()), dx = at::zeros({S, D}, x.options());
    grouped::forward_out(y, {}, sorted, {{{x}, table.at(0)}}, {});
    grouped::input_gradient_out(dx, {}, sorted, {{{dy}, table.at(0)}});
    grouped::add_matrix_gradients(table.at(1), sorted, {dy}, {x});
    grouped::add_bias_gradients(table.at(2), sorted, {dy}, {});
    return {y, dx, gradients, bias_gradients};
  }
};

TEST_CASE("cuda emulation: as many steps of a gemm as fit wait in shared memory") {
  const SmallCase c;
  struct Gpu {
    int kib, of_bf16, of_fp32, blocks_of_bf16, blocks_of_fp32;
  };
  // 8.6, 8.9 and 12.0; 8.0; 9.0 and 10.0.
  for (const Gpu& gpu : {Gpu{100, 3, 4, 2, 1}, Gpu{164, 4, 3, 2, 2}, Gpu{228, 4, 4, 2, 2}}) {
    CAPTURE(gpu.kib);
    Launches launches(gpu.kib << 10);
    for (const bool is_bf16 : {true, false}) {
      const cuda::WithKernels lent(launches);
      GroupTable table(at::kCPU);
      table.add(at::zeros({3, c.I, c.D}, is_bf16 ? at::kBFloat16 : at::kFloat).unbind(0));
      table.send();
      at::Tensor y = at::zeros({c.S, c.I}, at::kBFloat16);
      grouped::forward_out(y, {}, grouped::sort_out(c.counts, c.S), {{{c.x}, table.at(0)}}, {});
      const int stages = is_bf16 ? gpu.of_bf16 : gpu.of_fp32,
                blocks = is_bf16 ? gpu.blocks_of_bf16 : gpu.blocks_of_fp32;
      const int bytes = stages * (is_bf16 ? cuda::kBf16StageBytes : cuda::kFp32StageBytes);
      CHECK(launches.last.shared_bytes == static_cast<unsigned>(bytes));
      CHECK(bytes <= (gpu.kib - 1) << 10);  // of a block
      CHECK(blocks * (bytes + 1024) <= gpu.kib << 10);
    }
  }
}

TEST_CASE("cuda emulation: the number of steps in shared memory changes no bit of a gemm") {
  const SmallCase c;
  for (const at::ScalarType dtype : {at::kBFloat16, at::kFloat}) {
    testing::EmulatedKernels fewer(100 << 10), more(164 << 10);
    const std::vector<at::Tensor> some = c.results(fewer, dtype), others = c.results(more, dtype);
    for (size_t i = 0; i < some.size(); ++i) CHECK(at::equal(some[i], others[i]));
  }
}

TEST_CASE("cuda emulation: each wait that gemms of groups leave out is found") {
  if (cuda_available()) return;
  const SmallCase c;
  for (const at::ScalarType dtype : {at::kBFloat16, at::kFloat}) {
    const auto run = [&](cuda::Kernels& kernels) { return c.results(kernels, dtype); };
    CHECK(testing::check_waits(run) == 3);
  }
}

TEST_CASE("cuda emulation: tiles of rows of one group take turns with one tile of its matrix") {
  constexpr int64_t kTilesOfRows = 10, kDepth = 32, kColumns = 3 * cuda::kTileColumns;
  testing::EmulatedKernels emulated;
  std::vector<testing::CopiedVector> copied;
  const cuda::WithKernels lent(emulated);
  const int64_t S = kTilesOfRows * cuda::kTileRows;
  const SortedRows sorted = grouped::sort_out(at::tensor({S}, at::kLong), S);
  const at::Tensor matrix = at::zeros({kColumns, kDepth}, at::kBFloat16),
                   x = at::zeros({S, kDepth}, at::kBFloat16);
  GroupTable table(at::kCPU);
  table.add({matrix});
  table.send();
  at::Tensor y = at::empty({S, kColumns}, at::kBFloat16);
  emulated.collect_copies_in(copied);
  grouped::forward_out(y, {}, sorted, {{{x}, table.at(0)}}, {});
  // Each block's tile of rows, and its tile of columns.
  std::map<unsigned, std::pair<std::set<int64_t>, std::set<int64_t>>> places;
  const auto tile_in = [](const at::Tensor& all, const char* at, int64_t rows) -> int64_t {
    const int64_t offset = at - static_cast<const char*>(all.const_data_ptr());
    return offset >= 0 && offset < static_cast<int64_t>(all.nbytes()) ? offset / (rows * kDepth * 2)
                                                                      : -1;
  };
  for (const testing::CopiedVector& vector : copied) {
    auto& [of_rows, of_columns] = places[vector.block_x];
    const int64_t row = tile_in(x, vector.from, cuda::kTileRows),
                  column = tile_in(matrix, vector.from, cuda::kTileColumns);
    if (row >= 0) of_rows.insert(row);
    if (column >= 0) of_columns.insert(column);
  }
  // There is room for one more tile, since the host does not know the number.
  using Tiles = std::set<int64_t>;
  unsigned block = 0;
  for (const auto& [first, size] : {std::pair<int64_t, int64_t>{0, 8}, {8, 3}}) {
    for (int64_t column = 0; column < 3; ++column) {
      for (int64_t row = first; row < first + size; ++row, ++block) {
        CAPTURE(block);
        const bool is_there = row < kTilesOfRows;
        CHECK((places[block].first == (is_there ? Tiles{row} : Tiles{})));
        CHECK((places[block].second == (is_there ? Tiles{column} : Tiles{})));
      }
    }
  }
}

}  // namespace
}  // namespace longspan
