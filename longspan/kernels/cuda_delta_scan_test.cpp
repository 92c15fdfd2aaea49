// The scan of the gated delta rule beside fp64, number by number, as in cuda_delta_rule_test.cpp.
#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <sys/mman.h>

#include <utility>
#include <vector>

#include "longspan/kernels/cuda_delta_rule.h"
#include "longspan/spec/recurrence_spec.h"
#include "longspan/testing/gpu_check.h"
#include "longspan/testing/planted_waits.h"

namespace longspan {
namespace {

using testing::AnyKernels;
using testing::check_within;
using testing::kRounding;
using testing::last_rounding;
using testing::on_gpu;
using testing::wide;

constexpr int64_t C = kRuleChunk;
constexpr at::ScalarType kTypes[] = {at::kFloat, at::kBFloat16};

at::Tensor random(at::IntArrayRef sizes, at::ScalarType dtype = at::kFloat) {
  return at::randn(sizes, on_gpu(at::kDouble)).to(dtype);
}

struct ScanShape {
  int64_t K, V, N, Z;
};

TEST_CASE("cuda delta rule: each chunk of a scan, in both directions") {
  const AnyKernels kernels;
  at::manual_seed(44);
  for (const at::ScalarType dtype : kTypes) {
    // A GPU has a block for each few columns of so few heads, but for the last shape.
    std::vector<ScanShape> shapes{{128, 36, 2, 3}, {16, 8, 2, 3}, {4, 100, 2, 3}};
    if (cuda_available()) shapes.push_back({128, 128, 48, 2});
    for (const auto& [K, V, N, Z] : shapes) {
      for (const bool reversed : {false, true}) {
        CAPTURE(K);
        CAPTURE(reversed);
        CAPTURE(N);
        const double small = 0.1, last = last_rounding(dtype);
        // Columns of wider rows; in reverse x and the states in place of e and f.
        const at::Tensor both = (random({N, Z, C, K + V}) * small).to(dtype),
                         all = random({N, Z, K + C, V}, dtype), given = all.clone(),
                         states = all.narrow(2, 0, K), rows = all.narrow(2, K, C);
        const cuda_rows::ScanMatrices m{.a_NZCK = both.narrow(3, 0, K),
                                        .b_NZCK = (random({N, Z, C, K}) * small).to(dtype),
                                        .e_NZCV = reversed ? rows : both.narrow(3, K, V),
                                        .f_NZKV = reversed ? states : at::Tensor(),
                                        .x_NZCV = rows,
                                        .states_NZKV = states,
                                        .decay_NZ = at::rand({N, Z}, on_gpu(at::kFloat)),
                                        .reversed = reversed};
        const at::Tensor e_NZCV = reversed ? given.narrow(2, K, C) : m.e_NZCV,
                         first = random({N, K, V}), state = first.clone();
        cuda_rows::delta_scan(m, state);
        // Each chunk from the kernel's own state before it, as it is stored.
        for (int64_t step = 0; step < Z; ++step) {
          const int64_t z = reversed ? Z - 1 - step : step, next = reversed ? z - 1 : z + 1;
          const auto of = [&](const at::Tensor& x) { return wide(x.select(1, z)); };
          if (step == 0) CHECK(at::equal(states.select(1, z), first.to(dtype)));
          const at::Tensor S = of(states), a = of(m.a_NZCK), b = of(m.b_NZCK).transpose(1, 2),
                           e = of(e_NZCV), made = e + a.bmm(S), products = a.abs().bmm(S.abs());
          check_within(rows.select(1, z), made,
                       static_cast<double>(K + 2) * kRounding * (e.abs() + products) +
                           last * (products + made.abs()));
          const at::Tensor decay = of(m.decay_NZ).view({N, 1, 1}), x = of(rows),
                           f = reversed ? wide(given.narrow(2, 0, K).select(1, z))
                                        : at::zeros_like(S),
                           kept = decay * S.abs() + b.abs().bmm(x.abs()),
                           after = decay * S + b.bmm(x) + f;
          check_within(step + 1 < Z ? states.select(1, next) : state, after,
                       static_cast<double>(C + 3) * kRounding * (kept + f.abs()) +
                           last * (kept + after.abs()));
        }
      }
    }
  }
}

/// A GPU that runs many blocks at once.
struct LargeGpu : testing::EmulatedKernels {
  int num_multiprocessors() const override { return 132; }
};

TEST_CASE("cuda emulation: a scan by blocks of fewer columns gives the same bits, with barriers") {
  constexpr int64_t N = 2, Z = 2, K = 128, V = 36;
  for (const at::ScalarType dtype : kTypes) {
    const auto states_by = [&](cuda::Kernels& kernels) {
      const cuda::WithKernels lent(kernels);
      at::manual_seed(45);
      const auto some = [&](at::IntArrayRef sizes) { return at::randn(sizes).mul_(0.1).to(dtype); };
      const at::Tensor held = some({N, Z, K + C, V}), state = at::randn({N, K, V});
      cuda_rows::delta_scan({.a_NZCK = some({N, Z, C, K}),
                             .b_NZCK = some({N, Z, C, K}),
                             .e_NZCV = some({N, Z, C, V}),
                             .f_NZKV = {},
                             .x_NZCV = held.narrow(2, K, C),
                             .states_NZKV = held.narrow(2, 0, K),
                             .decay_NZ = at::rand({N, Z}),
                             .reversed = false},
                            state);
      return std::vector{held, state};
    };
    testing::EmulatedKernels small;
    LargeGpu large;
    const auto wide_blocks = states_by(small), narrow_blocks = states_by(large);
    for (size_t i = 0; i < 2; ++i) CHECK(at::equal(wide_blocks[i], narrow_blocks[i]));
    CHECK(testing::check_waits(states_by) == 2);
  }
}

/// A copy of x, behind whose last number nobody can read.
at::Tensor before_a_wall(const at::Tensor& x) {
  constexpr size_t kPage = 4096;
  const size_t bytes = x.nbytes(), size = (bytes + kPage - 1) / kPage * kPage;
  char* const pages = static_cast<char*>(mmap(nullptr, size + kPage, PROT_READ | PROT_WRITE,
                                              MAP_PRIVATE | MAP_ANONYMOUS, /*fd=*/-1, 0));
  REQUIRE(pages != MAP_FAILED);
  REQUIRE(mprotect(pages + size, kPage, PROT_NONE) == 0);
  return at::from_blob(
             pages + size - bytes, x.sizes(), [=](void*) { munmap(pages, size + kPage); },
             x.options())
      .copy_(x);
}

TEST_CASE("cuda emulation: a scan reads nothing behind its matrices, or the process ends") {
  constexpr int64_t N = 2, Z = 2, K = 16, V = 8;
  testing::EmulatedKernels emulated;
  const cuda::WithKernels lent(emulated);
  at::manual_seed(46);
  for (const at::ScalarType dtype : kTypes) {
    const auto some = [&](at::IntArrayRef sizes) {
      return before_a_wall(at::randn(sizes).mul_(0.1).to(dtype));
    };
    const at::Tensor rows = some({N, Z, C, V}), f = some({N, Z, K, V}),
                     state = before_a_wall(at::randn({N, K, V}));
    cuda_rows::delta_scan({.a_NZCK = some({N, Z, C, K}),
                           .b_NZCK = some({N, Z, C, K}),
                           .e_NZCV = rows,
                           .f_NZKV = f,
                           .x_NZCV = rows,
                           .states_NZKV = f,
                           .decay_NZ = before_a_wall(at::rand({N, Z})),
                           .reversed = false},
                          state);
    CHECK(!state.isnan().any().item<bool>());
  }
}

}  // namespace
}  // namespace longspan
