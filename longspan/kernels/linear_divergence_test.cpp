// Compares divergences to dense ones: full logits and autograd's gradients in fp64. L: label
// positions, D and E: model dims of student and teacher, V: vocabulary.
#include "longspan/kernels/linear_divergence.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <doctest/doctest.h>
#include <torch/csrc/autograd/autograd.h>

#include <limits>
#include <vector>

#include "longspan/memory/counting_allocator.h"
#include "longspan/testing/tolerance.h"

namespace longspan {
namespace {

using testing::relative_error;

const std::vector<double> kBetas = {0.0, 0.1, 0.5, 0.9, 1.0};

/// Terms of the divergence for log-probabilities of outcomes, by torch's kl_div.
at::Tensor dense_terms(const at::Tensor& student, const at::Tensor& teacher, double beta) {
  const auto kl = [](const at::Tensor& of, const at::Tensor& from) {
    return at::kl_div(from, of, /*reduction=*/0, /*log_target=*/true);
  };
  if (beta == 0) return kl(teacher, student);
  if (beta == 1) return kl(student, teacher);
  const auto mixture = at::logaddexp(student + std::log1p(-beta), teacher + std::log(beta));
  return beta * kl(teacher, mixture) + (1 - beta) * kl(student, mixture);
}

at::Tensor dense_divergence(const at::Tensor& student_LV, const at::Tensor& teacher_LV,
                            const DivergenceOptions& options) {
  const auto s = (student_LV / options.temperature).log_softmax(1),
             t = (teacher_LV / options.temperature).log_softmax(1);
  const auto terms = dense_terms(s, t, options.beta);
  if (!options.top_k || *options.top_k >= s.size(1)) return terms.sum(1);
  at::Tensor chosen = at::zeros_like(s, at::kBool);
  const auto choose_from = [&](const at::Tensor& logits) {
    chosen.scatter_(1, std::get<1>(logits.detach().topk(*options.top_k, 1)), true);
  };
  if (options.beta < 1) choose_from(t);
  if (options.beta > 0) choose_from(s);
  const auto tail = [&](const at::Tensor& logprobs) {
    return logprobs.masked_fill(chosen, -std::numeric_limits<double>::infinity()).logsumexp(1);
  };
  const at::Tensor alone = terms.masked_fill(chosen.logical_not(), 0).sum(1);
  if (chosen.all(1).any().item<bool>()) {
    // Some rows have no tail.
    const auto rest = chosen.logical_not().any(1);
    return alone.index_put(
        {rest}, alone.index({rest}) +
                    dense_terms(tail(s).index({rest}), tail(t).index({rest}), options.beta));
  }
  return alone + dense_terms(tail(s), tail(t), options.beta);
}

struct Pair {
  at::Tensor hidden_LD, weight_VD, teacher_hidden_LE, teacher_weight_VE;

  Pair(int64_t L, int64_t V, at::ScalarType dtype = at::kDouble, int64_t D = 8, int64_t E = 5)
      : hidden_LD(at::randn({L, D}, at::kDouble).to(dtype).requires_grad_(true)),
        weight_VD(at::randn({V, D}, at::kDouble).to(dtype).requires_grad_(true)),
        teacher_hidden_LE(at::randn({L, E}, at::kDouble).to(dtype)),
        teacher_weight_VE(at::randn({V, E}, at::kDouble).to(dtype)) {}

  at::Tensor divergence(const DivergenceOptions& options, ChunkBytes chunk_bytes = {}) const {
    return linear_divergence(hidden_LD, weight_VD, {teacher_hidden_LE, teacher_weight_VE}, options,
                             chunk_bytes);
  }
  at::Tensor student_logits() const {
    return at::matmul(hidden_LD.to(at::kDouble), weight_VD.to(at::kDouble).t());
  }
  at::Tensor teacher_logits() const {
    return at::matmul(teacher_hidden_LE.to(at::kDouble), teacher_weight_VE.to(at::kDouble).t());
  }
  at::Tensor dense(const DivergenceOptions& options) const {
    return dense_divergence(student_logits(), teacher_logits(), options);
  }
  std::vector<at::Tensor> take_gradients() const {
    std::vector<at::Tensor> gradients;
    for (const at::Tensor& x : {hidden_LD, weight_VD}) {
      gradients.push_back(x.grad());
      x.mutable_grad().reset();
    }
    return gradients;
  }
};

TEST_CASE("divergence: values and gradients are those of full logits, in any chunks") {
  at::manual_seed(21);
  const int64_t L = 150, V = 31;
  const Pair pair(L, V);
  const auto upstream = at::randn({L}, at::kDouble);
  using TopK = std::optional<int64_t>;
  for (const double beta : kBetas) {
    for (const double temperature : {1.0, 0.7, 2.5}) {
      // The union of 20 and 20 of 31 tokens sometimes has all tokens.
      for (const TopK& top_k : {TopK(), TopK(1), TopK(5), TopK(20), TopK(V)}) {
        const DivergenceOptions options{beta, temperature, top_k};
        CAPTURE(beta);
        CAPTURE(temperature);
        CAPTURE(top_k.value_or(0));
        const auto expected = pair.dense(options);
        torch::autograd::backward({(expected * upstream).sum()}, {});
        const auto expected_gradients = pair.take_gradients();
        for (const ChunkBytes chunk_bytes : {ChunkBytes(1), ChunkBytes()}) {
          const auto ours = pair.divergence(options, chunk_bytes);
          CHECK((ours.scalar_type() == at::kDouble));
          CHECK(relative_error(ours, expected) < 1e-12);
          torch::autograd::backward({(ours * upstream).sum()}, {});
          const auto gradients = pair.take_gradients();
          CHECK(relative_error(gradients[0], expected_gradients[0]) < 1e-12);
          CHECK(relative_error(gradients[1], expected_gradients[1]) < 1e-12);
        }
      }
    }
  }
}

TEST_CASE("divergence: gradients are those of finite differences") {
  at::manual_seed(22);
  const Pair pair(7, 40);
  for (const double beta : kBetas) {
    for (const std::optional<int64_t>& top_k : {std::optional<int64_t>(), {4}}) {
      CAPTURE(beta);
      CAPTURE(top_k.value_or(0));
      const DivergenceOptions options{beta, 1.3, top_k};
      torch::autograd::backward({pair.divergence(options).sum()}, {});
      const auto gradients = pair.take_gradients();
      const auto dhidden = at::randn_like(pair.hidden_LD), dweight = at::randn_like(pair.weight_VD);
      const double slope = (gradients[0] * dhidden).sum().item<double>() +
                           (gradients[1] * dweight).sum().item<double>();
      const c10::NoGradGuard no_grad;
      // A central difference is off by h^2 f''' / 6 + epsilon f / h.
      const double h = 1e-5;
      const auto at_step = [&](double step) {
        Pair moved = pair;
        moved.hidden_LD = pair.hidden_LD + step * dhidden;
        moved.weight_VD = pair.weight_VD + step * dweight;
        return moved.divergence(options).sum().item<double>();
      };
      const double difference = (at_step(h) - at_step(-h)) / (2 * h);
      CHECK(std::abs(difference - slope) < 1e-7 * std::max(1.0, std::abs(slope)));
    }
  }
}

TEST_CASE("divergence: equal models diverge by nothing, and far ones by finite numbers") {
  at::manual_seed(23);
  for (const double beta : kBetas) {
    for (const std::optional<int64_t>& top_k : {std::optional<int64_t>(), {3}}) {
      CAPTURE(beta);
      CAPTURE(top_k.value_or(0));
      for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
        Pair pair(9, 50, dtype);
        pair.teacher_hidden_LE = pair.hidden_LD.detach();
        pair.teacher_weight_VE = pair.weight_VD.detach();
        const auto zero = pair.divergence({beta, 1.0, top_k});
        CHECK_FALSE(zero.any().item<bool>());
        torch::autograd::backward({zero.sum()}, {});
        for (const at::Tensor& gradient : pair.take_gradients()) {
          CHECK_FALSE(gradient.any().item<bool>());
        }
      }
      // Log-ratios of hundreds: exp() of them overflows in fp32.
      Pair far(9, 50, at::kFloat);
      far.weight_VD.data().mul_(100);
      far.teacher_weight_VE.mul_(100);
      const DivergenceOptions options{beta, 1.0, top_k};
      const auto divergence = far.divergence(options);
      // The roundings of logits of about 1e3, of which the divergence is a difference.
      CHECK((divergence - far.dense(options)).abs().max().item<double>() < 1e3 * 1e-6);
      torch::autograd::backward({divergence.sum()}, {});
      for (const at::Tensor& gradient : far.take_gradients()) {
        CHECK(gradient.isfinite().all().item<bool>());
      }
    }
  }
}

TEST_CASE("divergence: a small one keeps its digits") {
  at::manual_seed(24);
  // The divergence of distributions that differ by 1e-5 is about 1e-10. One-hot hidden states make
  // the products exact.
  const int64_t L = 4, V = 1000;
  const at::Tensor hidden = at::eye(L, at::kDouble), teacher = at::randn({V, L}, at::kDouble);
  const at::Tensor change = at::randn({V, L}, at::kDouble) * 1e-5;
  const at::Tensor p = teacher.t().softmax(1);
  const at::Tensor centred = change.t() - (p * change.t()).sum(1, true);
  const at::Tensor second_order = (p * centred.square()).sum(1) / 2;
  for (const double beta : kBetas) {
    CAPTURE(beta);
    const auto ours = linear_divergence(hidden, teacher + change, {hidden, teacher}, {beta});
    // The next order is 1e-5 of it. A log-sum-exp of about 7 is rounded by 1e-15.
    const double factor = beta == 0 || beta == 1 ? 1 : beta * (1 - beta);
    CHECK(relative_error(ours, factor * second_order) < 1e-3);
  }
}

TEST_CASE("divergence: more tokens alone never make it smaller") {
  at::manual_seed(25);
  const int64_t V = 60;
  const Pair pair(12, V);
  const c10::NoGradGuard no_grad;
  for (const double beta : kBetas) {
    CAPTURE(beta);
    at::Tensor before = at::zeros({12}, at::kDouble);
    for (int64_t k = 1; k <= V; ++k) {
      const auto now = pair.divergence({beta, 1.0, k});
      CHECK((now - before).min().item<double>() > -1e-14);
      before = now;
    }
    CHECK(at::equal(before, pair.divergence({beta, 1.0})));
  }
}

TEST_CASE("divergence: bf16 hidden states") {
  at::manual_seed(26);
  for (const double beta : kBetas) {
    for (const std::optional<int64_t>& top_k : {std::optional<int64_t>(), {6}}) {
      CAPTURE(beta);
      CAPTURE(top_k.value_or(0));
      const DivergenceOptions options{beta, 1.5, top_k};
      // One-hot hidden states make the logits exact in bf16; division by the temperature rounds to
      // fp32. The gradient of the weight is that of the logits, rounded once.
      const int64_t L = 6, V = 300;
      Pair exact(L, V, at::kBFloat16, L, L);
      exact.hidden_LD = at::eye(L, at::kBFloat16).requires_grad_(true);
      exact.teacher_hidden_LE = at::eye(L, at::kBFloat16);
      const auto ours = exact.divergence(options), expected = exact.dense(options);
      CHECK(relative_error(ours, expected) < 1e-6);
      torch::autograd::backward({ours.sum()}, {});
      const at::Tensor gradient_VD = exact.take_gradients()[1];
      CHECK((gradient_VD.scalar_type() == at::kBFloat16));
      const at::Tensor student = exact.student_logits().detach().requires_grad_(true);
      torch::autograd::backward({dense_divergence(student, exact.teacher_logits(), options).sum()},
                                {});
      const at::Tensor off = (gradient_VD.t().to(at::kDouble) - student.grad()).abs();
      CHECK((off - student.grad().abs() / 256 - 1e-7).max().item<double>() < 0);

      // Other logits are rounded to bf16 on a CPU, by at most 2^-9 of each. To first order this
      // changes the divergence by its gradient times the roundings; half as much again for the
      // second order, and for sums of products in fp32. The bound holds for fixed tokens, thus for
      // the whole vocabulary.
      if (top_k) continue;
      const Pair pair(20, V, at::kBFloat16, 16, 12);
      const at::Tensor a = pair.student_logits().detach().requires_grad_(true),
                       b = pair.teacher_logits().detach().requires_grad_(true);
      const at::Tensor dense = dense_divergence(a, b, options);
      torch::autograd::backward({dense.sum()}, {});
      const at::Tensor bound =
          (a.grad() * a.detach()).abs().sum(1) + (b.grad() * b.detach()).abs().sum(1);
      const at::Tensor apart = (pair.divergence(options) - dense).abs().detach();
      CHECK((apart - bound * 1.5 / 512).max().item<double>() < 0);
    }
  }
}

TEST_CASE("divergence: bf16 gradients of the head are the row's sums in fp32, rounded once") {
  at::manual_seed(27);
  const Pair bf16(256, 300, at::kBFloat16);
  for (const std::optional<int64_t>& top_k : {std::optional<int64_t>(), {6}}) {
    CAPTURE(top_k.value_or(0));
    const auto gradient = [&](at::ScalarType parameters) {
      Pair pair = bf16;
      pair.weight_VD = bf16.weight_VD.detach().to(parameters).requires_grad_(true);
      torch::autograd::backward({pair.divergence({0.5, 1.0, top_k}, 1).sum()}, {});
      return pair.take_gradients()[1];
    };
    CHECK(at::equal(gradient(at::kBFloat16), gradient(at::kFloat).to(at::kBFloat16)));
  }
}

TEST_CASE("divergence: at most a chunk of logits of each model") {
  at::manual_seed(28);
  const int64_t L = 1024, V = 20'000, D = 4, rows = 32;
  Pair pair(L, V, at::kFloat, D, D);
  const int64_t chunk = 2 * rows * V * 4, all = 2 * L * V * 4, gradients = (V + L) * D * 4;
  for (const std::optional<int64_t>& top_k : {std::optional<int64_t>(), {8}}) {
    CAPTURE(top_k.value_or(0));
    AllocationCounter counter(AllocationCounter::Of::kProcess);
    const auto divergence = pair.divergence({0.5, 1.0, top_k}, 1);
    torch::autograd::backward({divergence.sum()}, {});
    // Parts of a chunk in fp64, and a few numbers for each row.
    CHECK(counter.peak_bytes() <= 2 * chunk + gradients + L * 8 * 64);
    CHECK(counter.peak_bytes() < all / 8);
    pair.take_gradients();
  }
}

TEST_CASE("divergence: parameters that do not train, and no rows") {
  at::manual_seed(29);
  for (const std::optional<int64_t>& top_k : {std::optional<int64_t>(), {6}}) {
    Pair pair(40, 30);
    const DivergenceOptions options{0.5, 1.0, top_k};
    torch::autograd::backward({pair.divergence(options).sum()}, {});
    const auto expected = pair.take_gradients();
    const at::Tensor hidden = pair.hidden_LD, weight = pair.weight_VD;
    pair.weight_VD = weight.detach();
    torch::autograd::backward({pair.divergence(options).sum()}, {});
    CHECK(at::equal(pair.take_gradients()[0], expected[0]));
    pair.weight_VD = weight;
    pair.hidden_LD = hidden.detach();
    torch::autograd::backward({pair.divergence(options).sum()}, {});
    CHECK(at::equal(pair.take_gradients()[1], expected[1]));
    pair.weight_VD = weight.detach();
    CHECK_FALSE(pair.divergence(options).requires_grad());

    const Pair none(0, 30);
    const at::Tensor empty = none.divergence(options);
    CHECK(empty.sizes() == at::IntArrayRef({0}));
    torch::autograd::backward({empty.sum()}, {});
    CHECK_FALSE(none.take_gradients()[1].any().item<bool>());
  }
}

TEST_CASE("divergence: the teacher's weight is read between its calls") {
  at::manual_seed(30);
  Pair pair(40, 30);
  for (const std::optional<int64_t>& top_k : {std::optional<int64_t>(), {6}}) {
    CAPTURE(top_k.value_or(0));
    const DivergenceOptions options{0.5, 1.0, top_k};
    torch::autograd::backward({pair.divergence(options).sum()}, {});
    const auto expected = pair.take_gradients();
    const at::Tensor held = pair.teacher_weight_VE, used = at::full_like(held, std::nan(""));
    int uses = 0;
    const TeacherHead teacher{pair.teacher_hidden_LE, used,
                              [&] {
                                used.copy_(held);
                                ++uses;
                              },
                              [&] { used.fill_(std::nan("")); }};
    const at::Tensor ours = linear_divergence(pair.hidden_LD, pair.weight_VD, teacher, options);
    CHECK(uses == 1);
    CHECK(at::equal(ours, pair.divergence(options)));
    torch::autograd::backward({ours.sum()}, {});
    CHECK(uses == (top_k ? 1 : 2));
    CHECK(at::equal(pair.take_gradients()[0], expected[0]));
  }
}

TEST_CASE("divergence: options and models that do not fit are refused") {
  const Pair pair(3, 10), other(3, 11), longer(4, 10), fp32(3, 10, at::kFloat);
  for (const double beta : {-0.1, 1.1, std::nan("")}) {
    CHECK_THROWS_WITH(pair.divergence({beta}), doctest::Contains("a beta of"));
  }
  for (const double temperature : {0.0, -1.0, std::nan("")}) {
    CHECK_THROWS_WITH(pair.divergence({0.5, temperature}), doctest::Contains("a temperature of"));
  }
  CHECK_THROWS_WITH(pair.divergence({0.5, 1.0, 0}), doctest::Contains("the 0 most probable"));
  const auto from = [&](const Pair& teacher) {
    linear_divergence(pair.hidden_LD, pair.weight_VD,
                      {teacher.teacher_hidden_LE, teacher.teacher_weight_VE}, {});
  };
  CHECK_THROWS_WITH(from(other), doctest::Contains("heads of 10 and 11 tokens"));
  CHECK_THROWS_WITH(from(longer), doctest::Contains("heads for 3 and 4 positions"));
  CHECK_THROWS_WITH(from(fp32), doctest::Contains("logits in"));
}

}  // namespace
}  // namespace longspan
