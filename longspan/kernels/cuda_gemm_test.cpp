// Products of bf16 matrices on a GPU with fp32 sums, and the head that uses them.
#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>

#include "longspan/kernels/gemm.h"
#include "longspan/kernels/linear.h"
#include "longspan/kernels/linear_cross_entropy.h"
#include "longspan/testing/gpu_check.h"
#include "longspan/testing/tolerance.h"

namespace longspan {
namespace {

using testing::allowed_error;
using testing::has_gpu;
using testing::relative_error;

at::Tensor random(at::IntArrayRef sizes, at::ScalarType dtype, double scale = 1) {
  return testing::random(sizes, dtype, /*is_aligned=*/true, scale);
}

at::Tensor wide(const at::Tensor& x) { return testing::wide(x.detach()); }

/// Rounding of fp32 sums of k products in any order. Errors of random sign grow like the root of k;
/// times 4 as for other sums in another order (testing/tolerance.h).
double rounding_of_sum(int64_t k) { return 4 * 0x1p-24 * std::sqrt(static_cast<double>(k)); }

TEST_CASE("cuda gemm: bf16 products come in fp32 and are added in fp32") {
  if (!has_gpu()) return;
  at::manual_seed(1);
  for (const auto& [m, k, n] :
       {std::tuple{33, 70, 17}, std::tuple{1, 5, 1}, std::tuple{640, 4096, 512}}) {
    const at::Tensor a = random({m, k}, at::kBFloat16), b = random({k, n}, at::kBFloat16);
    CHECK(gives_fp32(a));
    const at::Tensor exact = wide(a).mm(wide(b));
    at::Tensor c = at::full({m, n}, NAN, a.options().dtype(at::kFloat));
    CHECK(relative_error(gemm_out(c, a, b), exact) <= rounding_of_sum(k));
    CHECK(relative_error(gemm_out(c, a.t().contiguous().t(), b), exact) <= rounding_of_sum(k));
    add_gemm_(c, a, b, 0.5);
    CHECK(relative_error(c, exact * 1.5) <= rounding_of_sum(k));
    // c as rows of a larger tensor.
    at::Tensor larger = at::zeros({m + 2, n}, c.options());
    add_gemm_(larger.narrow(0, 1, m), a, b);
    CHECK(relative_error(larger.narrow(0, 1, m), exact) <= rounding_of_sum(k));
    CHECK(larger.select(0, 0).eq(0).all().item<bool>());
    // The first and the second gradient of an fp32 weight.
    const at::Tensor weight = at::zeros({m, n}, c.options()).requires_grad_(true);
    const at::Tensor a_T = a.t().contiguous();
    for (int part = 1; part <= 2; ++part) {
      add_gemm_gradient(weight, a_T, b);
      CHECK(relative_error(weight.grad(), exact * part) <= rounding_of_sum(k));
    }
    at::Tensor bf16 = at::zeros({m, n}, a.options());
    CHECK(relative_error(add_gemm_(bf16, a, b), exact) <= 0x1p-8 + rounding_of_sum(k));
  }
}

TEST_CASE("cuda gemm: the head's loss and gradients, of one chunk and of many") {
  if (!has_gpu()) return;
  at::manual_seed(2);
  const int64_t L = 200, D = 64, V = 1000;
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const at::Tensor hidden = random({L, D}, dtype).requires_grad_(true),
                     weight =
                         random({V, D}, at::kBFloat16, 0.2).to(at::kFloat).requires_grad_(true),
                     labels = at::randint(V, {L}, at::device(at::kCUDA).dtype(at::kLong));
    const auto loss_of = [&](const at::Tensor& h, const at::Tensor& w) {
      return -at::matmul(h, w.t()).log_softmax(-1).gather(1, labels.unsqueeze(1)).sum();
    };
    const at::Tensor h = wide(hidden).requires_grad_(true), w = wide(weight).requires_grad_(true);
    const at::Tensor exact = loss_of(h, w);
    torch::autograd::backward({exact}, {});
    const at::Tensor h32 = hidden.detach().to(at::kFloat).requires_grad_(true),
                     w32 = weight.detach().clone().requires_grad_(true);
    const at::Tensor other = loss_of(h32, w32);
    torch::autograd::backward({other}, {});
    for (const ChunkBytes chunk_bytes : {ChunkBytes(1), ChunkBytes()}) {
      const at::Tensor nll = linear_nll_sum(hidden, weight, labels, chunk_bytes);
      torch::autograd::backward({nll}, {});
      // Logits are fp32 sums of D products.
      CHECK(relative_error(nll, exact) <=
            std::max(allowed_error(other, exact), rounding_of_sum(D)));
      // d loss / d logits is rounded to bf16 where the hidden states are bf16, and so is dhidden.
      const double rounding = dtype == at::kBFloat16 ? 2 * 0x1p-8 : 0;
      CHECK(relative_error(hidden.grad(), h.grad()) <=
            allowed_error(h32.grad(), h.grad()) + rounding);
      CHECK(relative_error(weight.grad(), w.grad()) <=
            allowed_error(w32.grad(), w.grad()) + rounding);
      hidden.mutable_grad().reset();
      weight.mutable_grad().reset();
    }
  }
}

}  // namespace
}  // namespace longspan
