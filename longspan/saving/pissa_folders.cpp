#include "longspan/saving/pissa_folders.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <cmath>
#include <map>

#include "longspan/checkpoint/adapter_folder.h"
#include "longspan/settings/method_settings.h"

namespace longspan {

std::optional<Pissa> pissa_of(const MethodSettings& method,
                              const std::vector<NamedTensor>& first_adapter) {
  if (!method.pissa_init) return std::nullopt;
  return Pissa{method.pissa_iter < 0 ? "pissa" : fmt::format("pissa_niter_{}", method.pissa_iter),
               method.pissa_convert ? first_adapter : std::vector<NamedTensor>()};
}

void save_converted(const std::string& output_dir, const SavedModel& model,
                    const std::vector<NamedTensor>& adapter) {
  if (!model.pissa || model.pissa->first_adapter.empty()) return;
  const auto save = [&](const char* name, const LoraShape& shape,
                        const std::vector<NamedTensor>& matrices) {
    save_adapter(output_dir + "/" + name, model.config, {shape, matrices}, model.dtype,
                 model.source_folder);
  };
  std::map<std::string, at::Tensor> first;
  for (const auto& [name, tensor] : model.pissa->first_adapter) first[name] = tensor;
  std::vector<NamedTensor> both;
  for (const auto& [name, tensor] : adapter) {
    const at::Tensor trained = tensor.detach().to(at::kCPU, at::kFloat), before = first.at(name);
    const bool is_a = model.specs.of(name).role == ParameterRole::kLoraA;
    both.push_back({name, is_a ? at::cat({trained, before}) : at::cat({trained, -before}, 1)});
  }
  LoraShape twice = *model.lora;
  twice.r *= 2;
  twice.alpha *= twice.rank_stabilized ? std::sqrt(2.0) : 2.0;
  on_disk(output_dir, [&] {
    save("pissa_init", *model.lora, model.pissa->first_adapter);
    save("pissa_backup", *model.lora, adapter);
    save("pissa_converted", twice, both);
  });
}

}  // namespace longspan
