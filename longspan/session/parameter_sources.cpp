#include "longspan/session/parameter_sources.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "longspan/base/fnv1a.h"
#include "longspan/base/user_error.h"
#include "longspan/files/checksum.h"
#include "longspan/kernels/dropout.h"
#include "longspan/kernels/four_bits.h"
#include "longspan/models/lora.h"
#include "longspan/settings/method_settings.h"

namespace longspan {
namespace {

/// Returns the magnitudes of the projection's adapter; undefined if it has none.
at::Tensor magnitude_of(const std::map<std::string, at::Tensor>& adapter,
                        const ParameterSpec& projection) {
  const auto found = adapter.find(lora_magnitude_name(projection));
  return found == adapter.end() ? at::Tensor() : found->second;
}

int64_t rows_of(const std::vector<at::Tensor>& parts) {
  int64_t total = 0;
  for (const at::Tensor& part : parts) total += part.size(0);
  return total;
}

}  // namespace

void merge_adapters(const std::vector<std::string>& folders, const ModelConfig& model,
                    std::vector<ParameterSource>& sources) {
  for (const std::string& folder : folders) {
    const Adapter adapter = load_adapter(folder, model);
    std::map<std::string, at::Tensor> matrices;
    for (const auto& [name, tensor] : adapter.parameters) matrices[name] = tensor;
    for (ParameterSource& source : sources) {
      if (adapter.shape.trains_whole(source.spec)) {
        replace(source, matrices.at(source.spec.name));
        continue;
      }
      if (source.spec.lora_target.empty()) continue;
      const auto a = matrices.find(lora_a_name(source.spec));
      if (a == matrices.end()) continue;
      source.make = [make = source.make, a = a->second,
                     b = own_rows(source.spec, matrices.at(lora_b_name(source.spec))),
                     magnitude = own_rows(source.spec, magnitude_of(matrices, source.spec)),
                     scale = adapter.shape.scale()] {
        const at::Tensor weight = make();
        add_lora(weight, a, b, scale, magnitude);
        return weight;
      };
    }
  }
}

std::vector<NamedTensor> take_whole(const Adapter& adapter, std::vector<ParameterSource>& sources) {
  std::map<std::string, at::Tensor> by_name;
  for (const auto& [name, tensor] : adapter.parameters) by_name[name] = tensor;
  for (ParameterSource& source : sources) {
    if (!adapter.shape.trains_whole(source.spec)) continue;
    replace(source, by_name.extract(source.spec.name).mapped());
  }
  std::vector<NamedTensor> own = adapter.parameters;
  std::erase_if(own, [&](const NamedTensor& p) { return !by_name.contains(p.name); });
  return own;
}

std::vector<NamedTensor> take_principal_parts(const LoraShape& shape, int64_t iterations,
                                              uint64_t seed,
                                              std::vector<ParameterSource>& sources) {
  std::vector<NamedTensor> adapter;
  for (size_t first = 0; first < sources.size(); ++first) {
    const ParameterSpec& spec = sources[first].spec;
    if (!shape.adapts(spec) || !begins_adapter(spec)) continue;
    if (spec.expert) {
      throw UserError(fmt::format(
          "pissa_init: {} is a weight of experts, which PEFT's PiSSA does not take. Name other "
          "modules in lora_target, or remove pissa_init.",
          spec.name));
    }
    // Projections that share an adapter are one linear layer in PEFT.
    std::vector<ParameterSource*> projections;
    std::vector<at::Tensor> weights;
    for (ParameterSource& source : sources) {
      if (!shape.adapts(source.spec) || lora_a_name(source.spec) != lora_a_name(spec)) continue;
      projections.push_back(&source);
      weights.push_back(source.make().to(at::kFloat));
    }
    const at::Tensor weight = at::cat(weights);
    if (shape.r > std::min(weight.size(0), weight.size(1))) {
      throw UserError(
          fmt::format("lora_rank: {}, but {} has a rank of at most {}, and pissa_init splits the "
                      "weight at that "
                      "rank. Choose a smaller lora_rank.",
                      shape.r, spec.name, std::min(weight.size(0), weight.size(1))));
    }
    const uint64_t own_seed = mix_seed(seed, fnv1a(spec.adapted_linear));
    const LowRank part = principal_part(weight, shape.r, shape.scale(), iterations, own_seed);
    adapter.push_back({lora_a_name(spec), part.a_RI});
    adapter.push_back({lora_b_name(spec), part.b_OR});
    for (ParameterSource* source : projections) {
      source->make = [make = source->make, a = part.a_RI, b = own_rows(source->spec, part.b_OR),
                      scale = shape.scale()] {
        const at::Tensor weight = make();
        add_lora(weight, a, b, -scale);
        return weight;
      };
    }
  }
  return adapter;
}

std::vector<NamedTensor> set_magnitudes(const LoraShape& shape,
                                        const std::vector<ParameterSource>& sources,
                                        const std::optional<FourBits>& packed,
                                        const std::vector<NamedTensor>& adapter) {
  std::vector<NamedTensor> magnitudes;
  std::map<std::string, at::Tensor> by_name;
  for (const auto& [name, tensor] : adapter) by_name[name] = tensor;
  for (size_t i = 0; i < sources.size(); ++i) {
    const ParameterSpec& spec = sources[i].spec;
    const at::Tensor magnitude = magnitude_of(by_name, spec);
    if (!shape.adapts(spec) || !begins_adapter(spec) || !magnitude.defined()) continue;
    // Projections that share an adapter are consecutive parts of one tensor of the files, which is
    // packed as a whole.
    std::vector<at::Tensor> parts;
    for (size_t j = i; j < sources.size() && rows_of(parts) < magnitude.size(0); ++j) {
      parts.push_back(sources[j].make());
    }
    at::Tensor weight = parts.size() == 1 ? parts[0] : at::cat(parts);
    if (packed && is_quantized_matrix(spec) && weight.isfinite().all().item<bool>()) {
      const at::Tensor bytes = pack_four_bits(*packed, weight);
      weight = at::empty_like(weight);
      unpack_four_bits_out(weight, *packed, bytes);
    }
    // In fp64, so that the rounded lengths do not depend on a processor's order of sums.
    magnitude.copy_(at::linalg_vector_norm(weight, 2, {1}, /*keepdim=*/false, at::kDouble));
    magnitudes.push_back({lora_magnitude_name(spec), magnitude});
  }
  return magnitudes;
}

void require_same_adapter(const MethodSettings& method, const std::vector<NamedTensor>& first,
                          const Group& world) {
  if (!method.pissa_init && !method.use_dora) return;
  Xxh64 hash;
  for (const NamedTensor& parameter : first) {
    const at::Tensor values = parameter.tensor.detach().cpu().contiguous();
    hash.add(values.const_data_ptr(), values.nbytes());
  }
  const std::vector<std::string> hashes = world.gather_text(fmt::format("{}", hash.value()));
  for (int rank = 0; rank < world.size(); ++rank) {
    if (hashes[rank] == hashes[0]) continue;
    throw UserError(fmt::format(
        "{}: rank {} begins with {} than rank 0. Use machines with the same model files, "
        "processors and numbers of threads, or remove the key.",
        method.pissa_init ? "pissa_init" : "use_dora", rank,
        method.pissa_init ? "another decomposition of the weights" : "other lengths of rows"));
  }
}

void replace(ParameterSource& source, const at::Tensor& tensor) {
  source.make = [tensor, dtype = source.dtype] {
    return tensor.to(at::kCPU, dtype, /*non_blocking=*/false, /*copy=*/true).contiguous();
  };
}

void convert(ParameterSource& source, at::ScalarType dtype) {
  if (source.dtype == dtype) return;
  source.dtype = dtype;
  source.make =
      source.make.changed([dtype](const at::Tensor& numbers) { return numbers.to(dtype); });
}

std::vector<ParameterSource> sources_of(const std::vector<NamedTensor>& given,
                                        const ModelConfig& model, at::ScalarType dtype) {
  std::map<std::string, at::Tensor> tensors;
  for (const auto& [name, tensor] : given) tensors[name] = tensor.detach();
  std::vector<ParameterSource> sources;
  for (const ParameterSpec& spec : parameters_of(model.spec)) {
    const auto found = tensors.find(spec.name);
    if (found == tensors.end()) {
      throw UserError(fmt::format("{} is missing among the model's parameters", spec.name));
    }
    const at::Tensor tensor = found->second;
    if (tensor.sizes() != at::IntArrayRef(spec.shape)) {
      throw UserError(fmt::format("{} has the shape {}; wanted is {}", spec.name,
                                  fmt::join(tensor.sizes(), " x "), fmt::join(spec.shape, " x ")));
    }
    const at::ScalarType stored = stored_dtype(spec, dtype);
    sources.push_back(
        {spec, stored, false, [tensor, stored] {
           return tensor.to(at::kCPU, stored, /*non_blocking=*/false, /*copy=*/true).contiguous();
         }});
    tensors.erase(found);
  }
  if (!tensors.empty()) {
    throw UserError(fmt::format("{} is among the model's parameters; a {} has none of that name",
                                tensors.begin()->first, model.architecture));
  }
  return sources;
}

std::vector<ParameterSource> sources_from(const std::vector<NamedTensor>& parameters,
                                          const ParameterTable& specs) {
  std::vector<ParameterSource> sources;
  for (const NamedTensor& parameter : parameters) {
    const at::Tensor tensor = parameter.tensor.detach();
    sources.push_back({specs.of(parameter.name), tensor.scalar_type(), false,
                       [tensor] { return tensor.clone(); }});
  }
  return sources;
}

std::vector<NamedTensor> make_all(const std::vector<ParameterSource>& sources, at::Device device) {
  std::vector<NamedTensor> parameters;
  for (const ParameterSource& source : sources) {
    parameters.push_back(
        {source.spec.name, source.make().detach().to(device).set_requires_grad(source.trained)});
  }
  return parameters;
}

}  // namespace longspan
