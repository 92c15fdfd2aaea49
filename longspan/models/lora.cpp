#include "longspan/models/lora.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <sstream>

#include "longspan/config/user_error.h"
#include "longspan/models/dropout.h"

namespace longspan {
namespace {

constexpr const char* kA = ".lora_A.weight";
constexpr const char* kB = ".lora_B.weight";

uint64_t hash(const std::string& name) {  // FNV-1a
  uint64_t h = 0xcbf29ce484222325;
  for (const unsigned char c : name) h = (h ^ c) * 0x100000001b3;
  return h;
}

}  // namespace

double LoraShape::scale() const {
  return rank_stabilized ? alpha / std::sqrt(static_cast<double>(r))
                         : alpha / static_cast<double>(r);
}

const std::vector<std::string>& lora_modules() {
  static const std::vector<std::string> modules = {"q_proj",    "k_proj",  "v_proj",   "o_proj",
                                                   "gate_proj", "up_proj", "down_proj"};
  return modules;
}

std::set<std::string> lora_modules_from(const std::string& target) {
  const std::vector<std::string>& all = lora_modules();
  std::set<std::string> modules;
  std::istringstream names(target);
  for (std::string name; std::getline(names, name, ',');) {
    name.erase(std::remove(name.begin(), name.end(), ' '), name.end());
    if (name == "all") {
      modules.insert(all.begin(), all.end());
    } else if (std::find(all.begin(), all.end(), name) != all.end()) {
      modules.insert(name);
    } else {
      throw UserError(fmt::format("lora_target: the model has no module {}; choose from {}, or all",
                                  name.empty() ? "\"\"" : name, fmt::join(all, ", ")));
    }
  }
  if (modules.empty()) {
    throw UserError(
        fmt::format("lora_target names nothing; choose from {}, or all", fmt::join(all, ", ")));
  }
  return modules;
}

std::vector<ParameterShape> lora_parameter_shapes(const ModelConfig& config,
                                                  const LoraShape& shape) {
  std::vector<ParameterShape> shapes;
  for (const auto& [name, sizes] : parameter_shapes(config)) {
    if (!name.ends_with(".weight") || sizes.size() != 2) continue;
    const std::string layer = name.substr(0, name.size() - std::string(".weight").size());
    if (!shape.modules.contains(layer.substr(layer.rfind('.') + 1))) continue;
    const int64_t num_out = sizes[0], num_in = sizes[1];
    shapes.push_back({layer + kA, {shape.r, num_in}});
    shapes.push_back({layer + kB, {num_out, shape.r}});
  }
  return shapes;
}

std::vector<NamedTensor> new_lora_parameters(const ModelConfig& config, const LoraShape& shape,
                                             uint64_t seed) {
  std::vector<NamedTensor> parameters;
  for (const auto& [name, sizes] : lora_parameter_shapes(config, shape)) {
    if (name.ends_with(kB)) {
      parameters.push_back({name, at::zeros(sizes, at::kFloat)});
      continue;
    }
    const at::Tensor a = at::empty(sizes, at::kFloat);
    float* data = a.mutable_data_ptr<float>();
    const std::string layer = name.substr(0, name.size() - std::string(kA).size());
    const uint64_t key = mix_seed(seed, hash(layer));
    const double bound = 1.0 / std::sqrt(static_cast<double>(sizes[1]));
    for (int64_t i = 0; i < a.numel(); ++i) {
      const double u = static_cast<double>(mix_seed(key, static_cast<uint64_t>(i)) >> 11) * 0x1p-53;
      data[i] = static_cast<float>((2 * u - 1) * bound);
    }
    parameters.push_back({name, a});
  }
  return parameters;
}

bool is_lora_parameter(const std::string& name) { return name.ends_with(kA) || name.ends_with(kB); }

void merge_lora(std::vector<NamedTensor>& parameters, double scale) {
  const c10::NoGradGuard no_grad;
  std::map<std::string, at::Tensor> by_name;
  for (const auto& [name, tensor] : parameters) by_name[name] = tensor;
  for (const auto& [name, a] : by_name) {
    if (!name.ends_with(kA)) continue;
    const std::string layer = name.substr(0, name.size() - std::string(kA).size());
    const at::Tensor& weight = by_name.at(layer + ".weight");
    const at::Tensor delta = at::mm(by_name.at(layer + kB).to(at::kFloat), a.to(at::kFloat));
    weight.copy_(weight.to(at::kFloat) + delta.mul_(scale));
  }
  std::erase_if(parameters, [](const NamedTensor& p) { return is_lora_parameter(p.name); });
}

}  // namespace longspan
