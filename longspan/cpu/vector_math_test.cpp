// Compares the loops of every instruction set that the processor has with fp64.
#include "longspan/cpu/vector_math.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

namespace longspan::vector_math {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

void for_all_kernels(const std::function<void(const Kernels&)>& check) {
  for (const auto capability :
       {CpuCapability::kPortable, CpuCapability::kAvx2, CpuCapability::kAvx512}) {
    if (capability > widest_cpu_capability()) continue;
    CAPTURE(std::string(name_of(capability)));
    check(kernels_of(capability));
  }
}

std::vector<float> random_numbers(int64_t n, float scale, uint32_t seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0.0F, scale);
  std::vector<float> x(n);
  for (float& value : x) value = normal(generator);
  return x;
}

std::vector<double> in_double(const std::vector<float>& x) { return {x.begin(), x.end()}; }

/// |x - y| / |y| as vectors.
double error_of(const std::vector<float>& x, const std::vector<double>& y) {
  double difference = 0, size = 0;
  for (size_t i = 0; i < y.size(); ++i) {
    difference += (x[i] - y[i]) * (x[i] - y[i]);
    size += y[i] * y[i];
  }
  return std::sqrt(difference / size);
}

/// Logits like a trained model's for a rather certain token: a few large ones, and a long tail 16
/// nats below them. A third of the probability is in terms below half an ulp of the sum.
std::vector<float> trained_logits(int64_t vocabulary, uint32_t seed) {
  std::vector<float> x = random_numbers(vocabulary, 2.0F, seed);
  for (float& value : x) value += 4.0F;
  for (int i = 0; i < 8; ++i) x[vocabulary / 97 * i] = 20.0F - 0.8F * static_cast<float>(i);
  return x;
}

double exact_sum_exp(const std::vector<float>& x, double shift) {
  long double sum = 0;
  for (const float value : x) sum += std::exp(value - shift);
  return static_cast<double>(sum);
}

TEST_CASE("vector math: the log of a sum over a whole vocabulary keeps its digits") {
  for (const int64_t vocabulary : {49152, 151936}) {
    const std::vector<float> x = trained_logits(vocabulary, 1);
    const double exact = std::log(exact_sum_exp(x, 20.0));
    for_all_kernels([&](const Kernels& kernels) {
      // Rounding errors of x - shift and of exp have either sign and average out. The rest is far
      // below the 1e-6 that a loss may be off.
      CHECK(std::abs(std::log(kernels.sum_exp(x.data(), 20.0F, vocabulary)) - exact) < 1e-7);
    });
  }
}

TEST_CASE("vector math: every loop at any length") {
  // Rounding of a few operations for each element; a few more for fp32 sums over 1000 elements.
  constexpr double kTolerance = 1e-6;
  for (const int64_t n : {1, 7, 63, 64, 255, 257, 1000}) {
    CAPTURE(n);
    const auto x = random_numbers(n, 3, 1), y = random_numbers(n, 1, 2),
               w = random_numbers(n, 1, 3);
    const auto xd = in_double(x), yd = in_double(y), wd = in_double(w);
    for_all_kernels([&](const Kernels& kernels) {
      std::vector<float> out(n);
      std::vector<double> exact(n);
      CHECK(kernels.sum_of_squares(x.data(), n) ==
            doctest::Approx(sum_of_squares(xd.data(), n)).epsilon(kTolerance));
      CHECK(kernels.precise_sum_of_squares(x.data(), n) ==
            doctest::Approx(sum_of_squares(xd.data(), n)).epsilon(1e-14));
      CHECK(std::abs(kernels.triple_product(x.data(), y.data(), w.data(), n) -
                     triple_product(xd.data(), yd.data(), wd.data(), n)) <
            kTolerance * std::sqrt(static_cast<double>(n)) * 3);
      kernels.scale(out.data(), x.data(), y.data(), 0.7F, n);
      scale(exact.data(), xd.data(), yd.data(), 0.7F, n);
      CHECK(error_of(out, exact) < kTolerance);
      for (const bool with_residual : {false, true}) {
        kernels.norm_gradient(out.data(), x.data(), y.data(), w.data(),
                              with_residual ? y.data() : nullptr, 0.7F, 0.3F, n);
        norm_gradient(exact.data(), xd.data(), yd.data(), wd.data(),
                      with_residual ? yd.data() : nullptr, 0.7F, 0.3F, n);
        CHECK(error_of(out, exact) < kTolerance);
      }
      out = y;
      exact = yd;
      kernels.add_scaled_product(out.data(), x.data(), w.data(), 0.7F, n);
      add_scaled_product(exact.data(), xd.data(), wd.data(), 0.7F, n);
      CHECK(error_of(out, exact) < kTolerance);
      const int64_t F = n / 2;
      if (F > 0) {
        out = x;
        exact = xd;
        kernels.rotate(out.data(), out.data(), y.data(), w.data(), -1.0F, F);
        rotate(exact.data(), exact.data(), yd.data(), wd.data(), -1.0, F);
        CHECK(error_of(out, exact) < kTolerance);
        kernels.rotate_neighbours(out.data(), out.data(), y.data(), w.data(), 1.0F, F);
        rotate_neighbours(exact.data(), exact.data(), yd.data(), wd.data(), 1.0, F);
        CHECK(error_of(out, exact) < 2 * kTolerance);  // its input was rotated and rounded before
      }
      kernels.swiglu(out.data(), x.data(), y.data(), n);
      swiglu(exact.data(), xd.data(), yd.data(), n);
      CHECK(error_of(out, exact) < kTolerance);
      kernels.geglu(out.data(), x.data(), y.data(), n);
      geglu(exact.data(), xd.data(), yd.data(), n);
      CHECK(error_of(out, exact) < kTolerance);
      for (const bool gelu : {false, true}) {
        std::vector<float> gate = x, up = y, dact = w;
        std::vector<double> gate_exact = xd, up_exact = yd, dact_exact = wd;
        (gelu ? kernels.geglu_backward : kernels.swiglu_backward)(gate.data(), up.data(),
                                                                  dact.data(), n);
        if (gelu) {
          geglu_backward(gate_exact.data(), up_exact.data(), dact_exact.data(), n);
        } else {
          swiglu_backward(gate_exact.data(), up_exact.data(), dact_exact.data(), n);
        }
        CHECK(error_of(gate, gate_exact) < kTolerance);
        CHECK(error_of(up, up_exact) < kTolerance);
        CHECK(error_of(dact, dact_exact) < kTolerance);
      }
      // The numbers are about 3 and 1, so some of each are clamped.
      kernels.clamped_swiglu(out.data(), x.data(), y.data(), 1.702F, 1.5F, n);
      clamped_swiglu(exact.data(), xd.data(), yd.data(), 1.702F, 1.5, n);
      CHECK(error_of(out, exact) < kTolerance);
      std::vector<float> gate = x, up = y, dact = w;
      std::vector<double> gate_exact = xd, up_exact = yd, dact_exact = wd;
      kernels.clamped_swiglu_backward(gate.data(), up.data(), dact.data(), 1.702F, 1.5F, n);
      clamped_swiglu_backward(gate_exact.data(), up_exact.data(), dact_exact.data(), 1.702F, 1.5,
                              n);
      for (int64_t i = 0; i < n; ++i) CHECK((gate[i] == 0) == (x[i] > 1.5F));
      CHECK(error_of(dact, dact_exact) < kTolerance);
      if (n > 1) {  // a single number may be clamped
        CHECK(error_of(gate, gate_exact) < kTolerance);
        CHECK(error_of(up, up_exact) < kTolerance);
      }
      const float largest = *std::max_element(x.begin(), x.end());
      CHECK(kernels.max(x.data(), n) == largest);
      CHECK(kernels.sum_exp(x.data(), largest, n) ==
            doctest::Approx(exact_sum_exp(x, largest)).epsilon(kTolerance));
      out = x;
      exact = xd;
      kernels.scaled_exp(out.data(), largest, 0.7F, n);
      scaled_exp(exact.data(), largest, 0.7F, n);
      CHECK(error_of(out, exact) < kTolerance);
    });
  }
}

TEST_CASE("vector math: bf16 there and back, and its squares") {
  const int64_t n = 1001;
  const std::vector<float> x = random_numbers(n, 3, 1);
  for_all_kernels([&](const Kernels& kernels) {
    std::vector<uint16_t> stored(n);
    std::vector<float> back(n);
    kernels.to_bf16(stored.data(), x.data(), n);
    kernels.to_float(back.data(), stored.data(), n);
    for (int64_t i = 0; i < n; ++i) CHECK(back[i] == static_cast<float>(c10::BFloat16(x[i])));
    CHECK(kernels.precise_sum_of_squares_bf16(stored.data(), n) ==
          doctest::Approx(sum_of_squares(in_double(back).data(), n)).epsilon(1e-14));
  });
}

TEST_CASE("vector math: a NaN of any sign and payload stays one, wherever it stands") {
  const uint32_t nans[] = {0x7FC00000, 0xFFC00000, 0x7F800001, 0xFF800001,
                           0x7FFFFFFF, 0xFFFFFFFF, 0x7FA5A5A5, 0xFFA5A5A5};
  for (const uint32_t bits : nans) {
    CAPTURE(bits);
    const float nan = std::bit_cast<float>(bits);
    for (const int64_t n : {1, 5, 64, 300}) {
      for (const int64_t place : {int64_t{0}, n / 2, n - 1}) {
        std::vector<float> x = random_numbers(n, 1, 1);
        const std::vector<float> ones(n, 1.0F);
        const float largest = *std::max_element(x.begin(), x.end());
        x[place] = nan;
        for_all_kernels([&](const Kernels& kernels) {
          CHECK(std::isnan(kernels.sum_exp(x.data(), largest, n)));
          CHECK(std::isnan(kernels.sum_exp(x.data(), kernels.max(x.data(), n), n)));
          CHECK(std::isnan(kernels.precise_sum_of_squares(x.data(), n)));
          std::vector<float> out = x, gate = x, up = ones, dact = ones;
          kernels.scaled_exp(out.data(), largest, 2.0F, n);
          CHECK(std::isnan(out[place]));
          CHECK(std::count_if(out.begin(), out.end(), [](float v) { return std::isnan(v); }) == 1);
          kernels.swiglu(out.data(), x.data(), ones.data(), n);
          CHECK(std::isnan(out[place]));
          CHECK(std::count_if(out.begin(), out.end(), [](float v) { return std::isnan(v); }) == 1);
          kernels.swiglu(out.data(), ones.data(), x.data(), n);
          CHECK(std::isnan(out[place]));
          kernels.swiglu_backward(gate.data(), up.data(), dact.data(), n);
          CHECK(std::isnan(gate[place]));
          CHECK(std::isnan(up[place]));
          CHECK(std::isnan(dact[place]));
          for (const bool of_up : {false, true}) {
            gate = of_up ? ones : x;
            up = of_up ? x : ones;
            dact = ones;
            kernels.clamped_swiglu(out.data(), gate.data(), up.data(), 1.702F, 0.5F, n);
            CHECK(std::isnan(out[place]));
            kernels.clamped_swiglu_backward(gate.data(), up.data(), dact.data(), 1.702F, 0.5F, n);
            CHECK(std::isnan(dact[place]));
            CHECK(std::isnan((of_up ? up : gate)[place]) == !of_up);
          }
        });
      }
    }
  }
}

TEST_CASE("vector math: infinities") {
  for_all_kernels([&](const Kernels& kernels) {
    for (const int64_t n : {1, 5, 300}) {
      const std::vector<float> ones(n, 1.0F);
      std::vector<float> x = random_numbers(n, 1, 1);
      // A logit of -inf has probability 0. A logit of +inf makes all probabilities NaN.
      x[n - 1] = -kInfinity;
      const double rest = exact_sum_exp(std::vector<float>(x.begin(), x.end() - 1), 5.0);
      CHECK(kernels.sum_exp(x.data(), 5.0F, n) == doctest::Approx(rest).epsilon(1e-6).scale(1e-30));
      std::vector<float> out = x;
      kernels.scaled_exp(out.data(), 5.0F, 1.0F, n);
      CHECK(out[n - 1] >= 0.0F);
      CHECK(out[n - 1] < 2e-38F);
      x[n - 1] = kInfinity;
      CHECK(kernels.max(x.data(), n) == kInfinity);
      CHECK(std::isnan(kernels.sum_exp(x.data(), kInfinity, n)));
      out = x;
      kernels.scaled_exp(out.data(), kInfinity, 1.0F, n);
      CHECK(std::isnan(out[n - 1]));
      // silu(inf) = inf. silu(-inf) is -inf times 0, and not finite.
      kernels.swiglu(out.data(), x.data(), ones.data(), n);
      CHECK(out[n - 1] == kInfinity);
      x[n - 1] = -kInfinity;
      kernels.swiglu(out.data(), x.data(), ones.data(), n);
      CHECK(!std::isfinite(out[n - 1]));
    }
  });
}

}  // namespace
}  // namespace longspan::vector_math
