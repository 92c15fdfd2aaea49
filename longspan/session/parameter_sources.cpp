#include "longspan/session/parameter_sources.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>

#include "longspan/base/user_error.h"
#include "longspan/checkpoint/adapter_folder.h"
#include "longspan/models/lora.h"

namespace longspan {

void merge_adapters(const std::vector<std::string>& folders, const ModelConfig& model,
                    std::vector<ParameterSource>& sources) {
  for (const std::string& folder : folders) {
    const Adapter adapter = load_adapter(folder, model);
    std::map<std::string, at::Tensor> matrices;
    for (const auto& [name, tensor] : adapter.parameters) matrices[name] = tensor;
    for (ParameterSource& source : sources) {
      if (source.spec.lora_target.empty()) continue;
      const auto a = matrices.find(lora_a_name(source.spec));
      if (a == matrices.end()) continue;
      source.make = [make = source.make, a = a->second,
                     b = own_rows(source.spec, matrices.at(lora_b_name(source.spec))),
                     scale = adapter.shape.scale()] {
        const at::Tensor weight = make();
        add_lora(weight, a, b, scale);
        return weight;
      };
    }
  }
}

void convert(ParameterSource& source, at::ScalarType dtype) {
  if (source.dtype == dtype) return;
  source.dtype = dtype;
  source.make = [make = source.make, dtype] { return make().to(dtype); };
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
