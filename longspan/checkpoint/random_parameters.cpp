#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <cmath>
#include <numbers>

#include "longspan/base/fnv1a.h"
#include "longspan/checkpoint/model_folder.h"
#include "longspan/checkpoint/random_values.h"

namespace longspan {
namespace {

/// SplitMix64 (Steele, Lea, Flood, OOPSLA 2014): a bijection of 64-bit numbers. It turns a counter
/// into random numbers, so every element can be made on its own.
uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

}  // namespace

uint64_t random_key(uint64_t seed, const std::string& name) { return mix(mix(seed) ^ fnv1a(name)); }

void fill_normal(at::Tensor& tensor, uint64_t key, double standard_deviation) {
  float* data = tensor.data_ptr<float>();
  const int64_t numel = tensor.numel();
  at::parallel_for(0, (numel + 1) / 2, 4096, [&](int64_t begin, int64_t end) {
    for (int64_t pair = begin; pair < end; ++pair) {
      // Box-Muller transform of two uniform numbers of 53 bits, the first in (0, 1].
      const uint64_t counter = key + 2 * static_cast<uint64_t>(pair);
      const double u = static_cast<double>((mix(counter) >> 11) + 1) * 0x1p-53;
      const double angle =
          2 * std::numbers::pi * static_cast<double>(mix(counter + 1) >> 11) * 0x1p-53;
      const double radius = standard_deviation * std::sqrt(-2 * std::log(u));
      data[2 * pair] = static_cast<float>(radius * std::cos(angle));
      if (2 * pair + 1 < numel) data[2 * pair + 1] = static_cast<float>(radius * std::sin(angle));
    }
  });
}

namespace {

void fill_uniform(at::Tensor& tensor, uint64_t key, double low, double high) {
  float* data = tensor.data_ptr<float>();
  for (int64_t i = 0; i < tensor.numel(); ++i) {
    const double u = static_cast<double>(mix(key + static_cast<uint64_t>(i)) >> 11) * 0x1p-53;
    data[i] = static_cast<float>(low + (high - low) * u);
  }
}

at::Tensor new_values(const ParameterSpec& parameter, uint64_t key) {
  switch (parameter.init.kind) {
    case Initialisation::Kind::kZeros:
      return at::zeros(parameter.shape, at::kFloat);
    case Initialisation::Kind::kOnes:
      return at::ones(parameter.shape, at::kFloat);
    case Initialisation::Kind::kNormal: {
      at::Tensor tensor = at::empty(parameter.shape, at::kFloat);
      fill_normal(tensor, key, parameter.init.scale);
      return tensor;
    }
    case Initialisation::Kind::kLogUniform: {
      constexpr double kSlowest = 0.01;
      at::Tensor tensor = at::empty(parameter.shape, at::kFloat);
      fill_uniform(tensor, key, kSlowest, parameter.init.scale);
      return tensor.log_();
    }
    case Initialisation::Kind::kUniform:
      break;  // for adapters and value heads, which are initialized elsewhere
  }
  TORCH_CHECK(false, parameter.name, " does not begin with a model");
}

}  // namespace

std::vector<NamedTensor> random_parameters(const ModelConfig& config, uint64_t seed,
                                           at::ScalarType dtype) {
  std::vector<NamedTensor> parameters;
  for (const ParameterSpec& parameter : parameters_of(config.spec)) {
    const uint64_t key = random_key(seed, parameter.name);
    const at::Tensor values = new_values(parameter, key);
    parameters.push_back({parameter.name, values.to(stored_dtype(parameter, dtype))});
  }
  return parameters;
}

}  // namespace longspan
