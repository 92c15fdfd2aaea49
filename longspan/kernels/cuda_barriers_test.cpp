// Barriers of the kernels over rows: tests of their numbers would find each that is missing.
#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <vector>

#include "longspan/kernels/composed_rows.h"
#include "longspan/kernels/cuda_rows.h"
#include "longspan/testing/planted_waits.h"

namespace longspan {
namespace {

/// Rows of several warps (D), and several rows of a block.
std::vector<at::Tensor> norms(cuda::Kernels& kernels) {
  const cuda::WithKernels lent(kernels);
  std::vector<at::Tensor> results;
  for (const int64_t D : {3072, 100}) {
    at::manual_seed(61);
    const at::Tensor h = at::randn({9, D}), dy = at::randn({9, D}), weight = at::randn({D});
    at::Tensor rstd, y = at::empty_like(h), dh = at::empty_like(h), dweight = at::zeros({D});
    REQUIRE(cuda_rows::norm_forward(rstd, y, h, weight, {}, 1e-6));
    const at::Tensor exact = composed::reciprocal_rms(h, 1e-6);
    REQUIRE(cuda_rows::norm_backward_out(dh, dy, h, exact, weight, {}, dweight));
    results.insert(results.end(), {y, dh, dweight});
  }
  return results;
}

std::vector<at::Tensor> head(cuda::Kernels& kernels) {
  const cuda::WithKernels lent(kernels);
  at::manual_seed(62);
  const at::Tensor logits = at::randn({2, 4000}), labels = at::full({2}, 7, at::kLong);
  at::Tensor lse = at::empty({2}, at::kDouble), picked = lse.clone(), out = at::empty_like(logits);
  REQUIRE(cuda_rows::log_sum_exp_rows(logits, labels, lse, picked));
  REQUIRE(cuda_rows::cross_entropy_gradient_out(
      out, logits, labels, at::logsumexp(logits.to(at::kDouble), 1), at::ones({2})));
  return {lse, picked, out};
}

TEST_CASE("cuda emulation: each barrier that kernels over rows leave out is found") {
  CHECK(testing::check_waits(norms) == 3);
  CHECK(testing::check_waits(head) == 3);
}

}  // namespace
}  // namespace longspan
