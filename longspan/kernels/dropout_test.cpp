// Seed, key and column alone decide which numbers dropout drops, and the numbers of noise.
#include "longspan/kernels/dropout.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "longspan/spec/device_sizes.h"

namespace longspan {
namespace {

/// The hash's definition, one number at a time. mix_seed for number -1 is the mixing of x alone.
uint64_t hash_of(uint64_t seed, int64_t key, int64_t column) {
  const auto mixed = [](uint64_t x) { return mix_seed(x, UINT64_MAX); };
  const uint64_t of_column = mix_seed(0, static_cast<uint64_t>(column));
  const uint64_t of_row = mixed(static_cast<uint64_t>(key) + seed);
  return mixed(of_row + of_column) & ((uint64_t{1} << 53) - 1);
}

bool keeps(double p, uint64_t seed, int64_t key, int64_t column) {
  return hash_of(seed, key, column) >= static_cast<uint64_t>(p * std::ldexp(1.0, 53));
}

TEST_CASE("dropout: each number is chosen by itself, in every dtype") {
  constexpr int64_t kRows = 300, kColumns = 7;
  constexpr double kShare = 0.3;
  constexpr uint64_t kSeed = 0xfedcba9876543210ull;
  const at::Tensor keys = at::randint(INT64_MIN / 2, INT64_MAX / 2, {kRows}, at::kLong);
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
    const at::Tensor x = at::randn({kRows, kColumns}).to(dtype) + 10;
    const at::Tensor y = Dropout{kShare, kSeed, keys}.apply(x);
    const at::Tensor scaled = x * (1 / (1 - kShare));
    bool all = true;
    for (int64_t row = 0; row < kRows; ++row) {
      for (int64_t column = 0; column < kColumns; ++column) {
        const bool kept = keeps(kShare, kSeed, keys[row].item<int64_t>(), column);
        const double expected = kept ? scaled[row][column].item<double>() : 0.0;
        all = all && y[row][column].item<double>() == expected;
      }
    }
    CHECK(all);
  }
}

TEST_CASE("noise: uniform within the bound of each row, the same for any rows of a call") {
  constexpr int64_t kRows = 600, kColumns = 40;
  constexpr uint64_t kSeed = 0xfedcba9876543210ull;
  const at::Tensor keys = at::randint(INT64_MIN / 2, INT64_MAX / 2, {kRows}, at::kLong);
  const at::Tensor bounds = at::linspace(0.1, 2.0, kRows, at::kDouble);
  const at::Tensor noise = at::zeros({kRows, kColumns}, at::kDouble);
  add_uniform_noise_(noise, keys, bounds, kSeed);
  for (const int64_t row : {0, 17, 599}) {
    for (int64_t column = 0; column < kColumns; ++column) {
      const double unit =
          std::ldexp(static_cast<double>(hash_of(kSeed, keys[row].item<int64_t>(), column)), -52);
      CHECK(noise[row][column].item<double>() == (unit - 1) * bounds[row].item<double>());
    }
  }
  const at::Tensor unit = noise / bounds.unsqueeze(1);
  CHECK(unit.min().item<double>() >= -1);
  CHECK(unit.max().item<double>() < 1);
  // The standard errors of 24000 numbers' mean, and mean square.
  CHECK(std::abs(unit.mean().item<double>()) < 4 * std::sqrt(1.0 / 3 / 24000));
  CHECK(std::abs(unit.square().mean().item<double>() - 1.0 / 3) < 4 * std::sqrt(4.0 / 45 / 24000));
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const at::Tensor x = at::ones({kRows, kColumns}, dtype);
    const at::Tensor part = x.narrow(0, 100, 300);
    add_uniform_noise_(part, keys.narrow(0, 100, 300), bounds.narrow(0, 100, 300), kSeed);
    CHECK(at::equal(part, noise.narrow(0, 100, 300).to(dtype) + 1));
    CHECK(x.narrow(0, 0, 100).eq(1).all().item<bool>());
  }
}

// Calls get any rows: chunks of a sublayer, or a process's part of a row.
TEST_CASE("dropout: any rows drop what they drop in the whole row") {
  constexpr int64_t kRows = 1500, kColumns = 33;
  const Dropout whole{0.4, 99, at::randperm(kRows, at::kLong)};
  const at::Tensor x = at::randn({kRows, kColumns});
  const at::Tensor y = whole.apply(x);
  for (const int64_t chunk : {1, 255, 256, 257, 600, 1499}) {
    CAPTURE(chunk);
    std::vector<at::Tensor> parts;
    for (int64_t begin = 0; begin < kRows; begin += chunk) {
      const int64_t size = std::min(chunk, kRows - begin);
      const Dropout part{whole.p, whole.seed, whole.keys_T.narrow(0, begin, size)};
      parts.push_back(part.apply(x.narrow(0, begin, size)));
    }
    CHECK(at::equal(at::cat(parts), y));
  }
  // Four processes have every fourth row each, in any order.
  for (int64_t rank = 0; rank < 4; ++rank) {
    const at::Tensor own = at::arange(kRows - 1 - rank, -1, -4, at::kLong);
    const Dropout part{whole.p, whole.seed, whole.keys_T.index_select(0, own)};
    CHECK(at::equal(part.apply(x.index_select(0, own)), y.index_select(0, own)));
  }
}

TEST_CASE("dropout: a CPU chooses 256 rows at a time, a GPU as many as 256 MiB of hashes have") {
  CHECK(kCpuSizes.dropout.rows(1) == 256);
  CHECK(kCpuSizes.dropout.rows(100'000) == 256);
  CHECK(kCudaSizes.dropout.rows(4096) == 8192);
  CHECK(kCudaSizes.dropout.rows(1'000'000) == 256);
}

TEST_CASE("dropout: a share p is 0, the rest is scaled, and a row's choice is its key's") {
  const Dropout dropout{0.3, 77, at::arange(500, at::kLong)};
  const at::Tensor x = at::ones({500, 400}, at::kDouble);
  const at::Tensor y = dropout.apply(x);
  const double zeros = y.eq(0).to(at::kDouble).mean().item<double>();
  // 200,000 draws have a standard deviation of 0.001.
  CHECK(zeros == doctest::Approx(0.3).epsilon(0.02));
  CHECK(at::allclose(y.masked_select(y.ne(0)), at::full({1}, 1 / 0.7, at::kDouble)));
  // Rows differ, and columns too.
  CHECK(y.eq(0).to(at::kDouble).mean(0).max().item<double>() < 0.45);
  CHECK(y.eq(0).to(at::kDouble).mean(1).min().item<double>() > 0.15);
  const at::Tensor some = at::tensor({7, 300, 4}, at::kLong);
  const Dropout part{0.3, 77, dropout.keys_T.index_select(0, some)};
  CHECK(at::equal(part.apply(x.narrow(0, 0, 3)), y.index_select(0, some)));
  const Dropout other{0.3, 78, dropout.keys_T};
  const double same = other.apply(x).eq(y).to(at::kDouble).mean().item<double>();
  CHECK(same == doctest::Approx(0.3 * 0.3 + 0.7 * 0.7).epsilon(0.02));
}

}  // namespace
}  // namespace longspan
