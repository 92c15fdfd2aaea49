#include "longspan/checkpoint/grown_vocabulary.h"

#include <ATen/ATen.h>

#include <cmath>

#include "longspan/checkpoint/model_folder.h"
#include "longspan/checkpoint/random_values.h"

namespace longspan {
namespace {

bool has_row_per_token(const ParameterSpec& parameter) {
  return parameter.role == ParameterRole::kEmbedding || parameter.role == ParameterRole::kHead;
}

/// In fp64, a part at a time.
at::Tensor mean_of_rows(const at::Tensor& rows) {
  constexpr int64_t kPart = 4096;
  at::Tensor sum = at::zeros({rows.size(1)}, at::kDouble);
  for (const at::Tensor& part : rows.split(kPart)) sum += part.to(at::kDouble).sum(0);
  return (sum / rows.size(0)).to(at::kFloat);
}

at::Tensor with_rows(const at::Tensor& known, int64_t num_rows, uint64_t key) {
  const int64_t width = known.size(1);
  at::Tensor fresh = at::empty({num_rows - known.size(0), width}, at::kFloat);
  fill_normal(fresh, key, 1 / std::sqrt(static_cast<double>(width)));
  fresh += mean_of_rows(known);
  return at::cat({known, fresh.to(known.scalar_type())});
}

}  // namespace

std::vector<ParameterSource> grown_sources(const std::string& folder, const ModelConfig& model,
                                           at::ScalarType dtype, uint64_t seed) {
  const int64_t num_known = load_model_config(folder).spec.vocab_size,
                num_rows = model.spec.vocab_size;
  if (num_known >= num_rows) return parameter_sources(folder, model, dtype);
  ModelConfig stored = model;
  stored.spec.vocab_size = num_known;
  std::vector<ParameterSource> sources = parameter_sources(folder, stored, dtype);
  const ParameterTable specs(parameters_of(model.spec));
  for (ParameterSource& source : sources) {
    if (!has_row_per_token(source.spec)) continue;
    const uint64_t key = random_key(seed, source.spec.name + ", further rows");
    source.spec = specs.of(source.spec.name);
    source.make = [make = source.make, num_rows, key] { return with_rows(make(), num_rows, key); };
  }
  return sources;
}

std::vector<NamedTensor> load_grown(const std::string& folder, const ModelConfig& model,
                                    at::ScalarType dtype) {
  std::vector<NamedTensor> parameters;
  for (const ParameterSource& source : grown_sources(folder, model, dtype, /*seed=*/0)) {
    parameters.push_back({source.spec.name, source.make()});
  }
  return parameters;
}

}  // namespace longspan
