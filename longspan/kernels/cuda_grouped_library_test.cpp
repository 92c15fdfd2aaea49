// at::_grouped_mm in the place of Longspan's kernel: on a CPU, whose at::_grouped_mm multiplies by
// one matrix after the other, and on a GPU. Tolerance: as in cuda_grouped_gemm_test.cpp.
#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <optional>
#include <vector>

#include "longspan/kernels/grouped_library.h"
#include "longspan/testing/gpu_check.h"

namespace longspan::grouped {
namespace {

using testing::wide;

constexpr double kRounding = 0x1p-24, kBf16Rounding = 0x1p-8;

struct LibraryCase {
  int64_t E = 5, depth = 40, columns = 24, S = 90;
  bool transposed;
  at::Device device;
  std::vector<int64_t> counts{30, 0, 41, 19, 0};
  testing::EmulatedKernels kernels;
  std::vector<testing::CopiedVector> copied;  // by Longspan's emulated kernel
  std::optional<cuda::WithKernels> lent;
  SortedRows sorted;
  at::Tensor x = at::randn({50, depth}).to(device, at::kBFloat16),
             from_S = at::randint(0, 50, {S}).to(device), to_S = at::randperm(S).to(device),
             matrices, biases = at::randn({E, columns}).to(device);
  GroupTable table{device};

  explicit LibraryCase(bool is_transposed, at::Device on = at::kCPU)
      : transposed(is_transposed), device(on) {
    if (device.is_cpu()) lent.emplace(kernels);
    sorted = sort_out(at::tensor(counts).to(device), S);
    matrices = at::randn(transposed ? at::IntArrayRef{E, depth, columns}
                                    : at::IntArrayRef{E, columns, depth})
                   .to(device, at::kBFloat16);
    table.add(matrices.unbind(0));
    table.add(biases.unbind(0));
    table.send();
    kernels.collect_copies_in(copied);
    let_library_multiply({gemm()});
  }
  ~LibraryCase() { let_library_multiply({}); }

  ExpertGemm gemm() const { return {E, depth, columns, transposed}; }
  bool is_by_library(const GroupMatrices& held, double scale = 1.0, int times = 1) {
    copied.clear();
    at::Tensor y = at::empty({S, columns}, x.options());
    const std::vector<GroupedOperands> operands(static_cast<size_t>(times), {{x, from_S}, held});
    if (transposed) {
      input_gradient_out(y, {}, sorted, operands, scale);
    } else {
      forward_out(y, {}, sorted, operands, {}, scale);
    }
    return copied.empty();
  }
  /// `y`: of rows in their own order.
  void check(const at::Tensor& y) const {
    const at::Tensor picked = wide(x.index_select(0, from_S));
    int64_t begin = 0;
    for (int64_t e = 0; e < E; ++e) {
      const at::Tensor w = transposed ? wide(matrices[e]) : wide(matrices[e]).t(),
                       rows = picked.narrow(0, begin, counts[e]), sum = rows.mm(w);
      const at::Tensor allowed =
          sum.abs() * kBf16Rounding +
          rows.abs().mm(w.abs()) * (static_cast<double>(depth + 4) * kRounding);
      CHECK((wide(y.narrow(0, begin, counts[e])) - sum).abs().le(allowed).all().item<bool>());
      begin += counts[e];
    }
  }
};

void check_library_on(at::Device device) {
  at::manual_seed(31);
  for (const bool transposed : {false, true}) {
    CAPTURE(transposed);
    LibraryCase c(transposed, device);
    const GroupMatrices held = c.table.at(0);
    REQUIRE(held.side_by_side.defined());
    at::Tensor y = at::empty({c.S, c.columns}, c.x.options());
    if (transposed) {
      input_gradient_out(y, c.to_S, c.sorted, {{{c.x, c.from_S}, held}});
    } else {
      forward_out(y, c.to_S, c.sorted, {{{c.x, c.from_S}, held}}, {});
    }
    CHECK(c.copied.empty());
    c.check(y.index_select(0, c.to_S));
    // Pieces of one row, of some, and of all; without rows that go to other places.
    for (const int64_t rows : {1, 37, 1000}) {
      CAPTURE(rows);
      at::Tensor in_order = at::empty_like(y);
      multiply_by_library(in_order, {}, c.sorted, {{c.x, c.from_S}, held}, transposed,
                          rows * 2 * (c.depth + c.columns));
      c.check(in_order);
    }
  }
}

TEST_CASE("cuda emulation: at::_grouped_mm computes gemms of experts where it is chosen") {
  check_library_on(at::kCPU);
}

TEST_CASE("cuda gemm: at::_grouped_mm of the GPU, with empty groups and in pieces") {
  if (!testing::has_gpu()) return;
  use_gpu(0, GpuNumbers{});  // it computes nothing where the same bits are asked for
  check_library_on(at::kCUDA);
}

TEST_CASE("cuda emulation: all other gemms of experts are Longspan's") {
  for (const bool transposed : {false, true}) {
    LibraryCase c(transposed);
    const GroupMatrices held = c.table.at(0);
    CHECK(c.is_by_library(held));
    CHECK_FALSE(c.is_by_library(held, /*scale=*/0.5));
    CHECK_FALSE(c.is_by_library(held, 1.0, /*times=*/2));
    // Each matrix by itself, and in fp32.
    for (const at::ScalarType dtype : {at::kBFloat16, at::kFloat}) {
      std::vector<at::Tensor> apart;
      for (int64_t e = 0; e < c.E; ++e) apart.push_back(c.matrices[e].to(dtype, false, true));
      GroupTable table(at::kCPU);
      table.add(apart);
      table.send();
      CHECK_FALSE(table.at(0).side_by_side.defined());
      CHECK_FALSE(c.is_by_library(table.at(0)));
    }
    if (!transposed) {
      at::Tensor y = at::empty({c.S, c.columns}, c.x.options());
      c.copied.clear();
      forward_out(y, {}, c.sorted, {{{c.x, c.from_S}, held}}, c.table.at(1));
      CHECK_FALSE(c.copied.empty());
    }
    ExpertGemm other = c.gemm();
    other.depth += 8;
    let_library_multiply({other});
    CHECK_FALSE(c.is_by_library(held));
    let_library_multiply({c.gemm()});
    at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
    const bool is_deterministic = !c.is_by_library(held);
    at::globalContext().setDeterministicAlgorithms(false, false);
    CHECK(is_deterministic);
  }
}

}  // namespace
}  // namespace longspan::grouped
