// Runs optimizers for the Python tests: optim_probe <job.json> <result.safetensors>.
//
// The job: weights (a safetensors file), gradients (one such file per step), optimizer (a value of
// optim), learning_rate, beta1, beta2, epsilon, weight_decay, and the roles of parameters that are
// not matrices of linear layers. The result: weights, moments, and the values of the 8-bit data
// type.
#include <ATen/ATen.h>

#include <fstream>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>

#include "longspan/checkpoint/safetensors.h"
#include "longspan/optim/block_quantization.h"
#include "longspan/session/model_update.h"
#include "longspan/settings/optimization_settings.h"
#include "longspan/spec/parameter_spec.h"

namespace longspan {
namespace {

ParameterRole role_named(const std::string& name) {
  static const std::map<std::string, ParameterRole> roles = {
      {"embedding", ParameterRole::kEmbedding},
      {"norm", ParameterRole::kNorm},
      {"projection", ParameterRole::kProjection},
      {"bias", ParameterRole::kBias},
      {"head", ParameterRole::kHead},
      {"lora_A", ParameterRole::kLoraA},
      {"value_head", ParameterRole::kValueHead}};
  return roles.at(name);
}

}  // namespace
}  // namespace longspan

int main(int argc, char** argv) {
  using namespace longspan;
  try {
    if (argc != 3) throw std::runtime_error("optim_probe <job.json> <result.safetensors>");
    const auto job = nlohmann::json::parse(std::ifstream(argv[1]));
    OptimizationSettings config;
    config.optim = job.at("optimizer");
    config.adam_beta1 = job.at("beta1");
    config.adam_beta2 = job.at("beta2");
    config.adam_epsilon = job.at("epsilon");
    config.weight_decay = job.at("weight_decay");
    std::vector<NamedTensor> parameters;
    for (const auto& [name, tensor] : read_safetensors(job.at("weights"))) {
      parameters.push_back({name, tensor.clone().set_requires_grad(true)});
    }
    ParameterTable specs;
    for (const auto& [name, tensor] : parameters) {
      const std::string role = job.at("roles").value(name, "projection");
      specs.add(parameter_spec(name, tensor.sizes().vec(), role_named(role), kAlwaysThere));
    }
    ModelUpdate update(parameters, specs, /*sharded=*/nullptr, /*sums=*/nullptr, config,
                       /*offload=*/false);
    for (const std::string path : job.at("gradients")) {
      std::map<std::string, at::Tensor> gradients;
      for (const auto& [name, tensor] : read_safetensors(path)) gradients[name] = tensor;
      for (NamedTensor& parameter : parameters) {
        parameter.tensor.mutable_grad() = gradients.at(parameter.name).clone();
      }
      update.step(job.at("learning_rate"));
    }
    std::vector<NamedTensor> results = parameters;
    for (const StateSource& source : update.optimizer().state()) {
      for (const auto& [name, tensor] : source.make().tensors) {
        results.push_back({name + "." + source.parameter, tensor});
      }
    }
    for (const bool is_signed : {true, false}) {
      const auto& values = dynamic_values(is_signed);
      results.push_back({is_signed ? "values.signed" : "values.unsigned",
                         at::tensor(at::ArrayRef<float>(values.data(), values.size()))});
    }
    write_safetensors(argv[2], results);
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "error: " << error.what() << "\n";
    return 1;
  }
}
