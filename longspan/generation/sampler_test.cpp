#include "longspan/generation/sampler.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <map>

#include "longspan/base/user_error.h"

namespace longspan {
namespace {

/// The share of each token in `count` draws.
std::map<int32_t, double> shares(const SamplingOptions& options, std::vector<float> logits,
                                 int count = 20000) {
  Sampler sampler(options, /*seed=*/7);
  std::map<int32_t, double> drawn;
  for (int i = 0; i < count; ++i) {
    std::vector<float> row = logits;
    drawn[sampler.pick(row, {})] += 1.0 / count;
  }
  return drawn;
}

}  // namespace

TEST_CASE("sampler: greedy takes the first of the likeliest") {
  std::vector<float> logits = {0.5f, 2.0f, -1.0f, 2.0f};
  CHECK(Sampler({}, 0).pick(logits, {}) == 1);
}

TEST_CASE("sampler: a model that computes no numbers has no answer") {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const float nan = std::nanf("");
  SamplingOptions drawn, penalized;
  drawn.do_sample = true;
  penalized.repetition_penalty = 2.0;
  for (const SamplingOptions& options : {SamplingOptions(), drawn, penalized}) {
    for (const std::vector<float>& logits : {std::vector<float>{nan, nan, nan},
                                             {0.5f, 1.0f, nan},
                                             {nan, 2.0f, 1.0f},
                                             {0.0f, kInfinity, 1.0f},
                                             {-kInfinity, -kInfinity, -kInfinity}}) {
      std::vector<float> row = logits;
      CHECK_THROWS_AS(Sampler(options, 0).pick(row, {}), UserError);
    }
    std::vector<float> masked = {-kInfinity, 2.0f, -kInfinity};
    CHECK(Sampler(options, 0).pick(masked, {}) == 1);
  }
}

TEST_CASE("sampler: the penalty makes tokens that came before less likely, whatever their sign") {
  SamplingOptions options;
  options.repetition_penalty = 2.0;
  const std::vector<int32_t> before = {1, 1, 0};
  std::vector<float> logits = {-0.4f, 1.5f, 0.8f};
  CHECK(Sampler(options, 0).pick(logits, before) == 2);
  CHECK(logits[0] == -0.8f);
  CHECK(logits[1] == 0.75f);  // penalized once, however often it occurred
}

TEST_CASE("sampler: draws by the softmax of temperature, among top_k and top_p") {
  // Probabilities 0.5, 0.25, 0.15, 0.1.
  const std::vector<float> logits = {std::log(0.25f), std::log(0.5f), std::log(0.1f),
                                     std::log(0.15f)};
  // A share of 20000 draws is within 5 standard deviations, 5 sqrt(0.25 / 20000) = 0.018.
  constexpr double kSpread = 0.018;
  SamplingOptions options;
  options.do_sample = true;
  auto drawn = shares(options, logits);
  CHECK(std::abs(drawn[1] - 0.5) < kSpread);
  CHECK(std::abs(drawn[0] - 0.25) < kSpread);
  CHECK(std::abs(drawn[2] - 0.1) < kSpread);

  SUBCASE("temperature 0.5 squares them") {
    options.temperature = 0.5;
    drawn = shares(options, logits);
    CHECK(std::abs(drawn[1] - 0.25 / 0.345) < kSpread);
  }
  SUBCASE("top_k") {
    options.top_k = 2;
    drawn = shares(options, logits);
    CHECK(drawn.size() == 2);
    CHECK(std::abs(drawn[1] - 2.0 / 3) < kSpread);
  }
  SUBCASE("top_p: a token stays while those before it hold less than that") {
    options.top_p = 0.6;
    CHECK(shares(options, logits).size() == 2);
    options.top_p = 0.4;
    CHECK(shares(options, logits).size() == 1);
  }
  SUBCASE("the seed says which") {
    std::vector<float> row = logits, again = logits;
    CHECK(Sampler(options, 3).pick(row, {}) == Sampler(options, 3).pick(again, {}));
  }
}

}  // namespace longspan
