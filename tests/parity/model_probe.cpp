// Runs models for the Python tests: model_probe <model folder> <job.json> <result.safetensors>.
// model_probe count <config.json> ... prints the number of parameter elements for each file, and
// separately the elements of buffers.
//
// The job: tokens, labels (already shifted, -100 if none), documents (lengths), checkpointing,
// parameter_dtype and compute_dtype (float32, bfloat16, float64), outputs (any of logits, logprobs,
// loss, gradients, logprob_gradients, auxiliary_gradients, which requires a coefficient), save_to
// (a folder for the model) and save_shard_bytes.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <span>
#include <string_view>

#include "longspan/base/user_error.h"
#include "longspan/checkpoint/model_folder.h"
#include "longspan/checkpoint/safetensors.h"
#include "longspan/models/decoder.h"
#include "longspan/models/dtype_words.h"
#include "longspan/models/parameter_count.h"
#include "longspan/objectives/load_balance.h"
#include "longspan/objectives/sft.h"
#include "longspan/sequence_parallel/sequence_parallel.h"

namespace {

using namespace longspan;

at::ScalarType dtype_of(const nlohmann::json& job, const char* key) {
  return dtype_named(job.value(key, "float32")).value();
}

Batch read_batch(const nlohmann::json& job) {
  Batch batch;
  const auto documents = job.at("documents").get<std::vector<int64_t>>();
  batch.packing = Packing::from_lengths(documents);
  batch.tokens_T = at::tensor(job.at("tokens").get<std::vector<int64_t>>());
  batch.labels_T = at::tensor(job.at("labels").get<std::vector<int64_t>>());
  std::vector<at::Tensor> positions;
  for (const int64_t length : documents) positions.push_back(at::arange(length, at::kLong));
  batch.positions_T = at::cat(positions);
  batch.num_positions = *std::ranges::max_element(documents);
  return batch;
}

void add_gradients(Decoder& model, std::vector<NamedTensor>& results) {
  for (const auto& [name, parameter] : model.parameters()) {
    if (!parameter.requires_grad()) continue;
    results.push_back({"gradient." + name, parameter.grad().clone()});
    parameter.mutable_grad().reset();
  }
}

/// Adds the gradients of the loss plus the auxiliary loss; aux_loss is the latter without its
/// coefficient.
void add_auxiliary_gradients(Decoder& model, const ModelSpec& spec, const Batch& batch,
                             int64_t num_labels, double coefficient,
                             std::vector<NamedTensor>& results) {
  const MixtureOfExpertsSpec& experts = *experts_of(spec.layer(layers_with_experts(spec).front()));
  ExpertLoad load(spec.num_layers, experts.num_experts);
  load.sums_scores = true;
  model.count_experts(&load);
  const at::Tensor loss = sft_loss(model, batch, num_labels);
  model.count_experts(nullptr);
  load.gradient_E = load_balance_gradient(load.counts_LE(), experts.experts_per_token, coefficient);
  torch::autograd::backward({loss}, {});
  add_gradients(model, results);
  results.push_back({"aux_loss", (load.gradient_E * load.scores_E()).sum() / coefficient});
}

void run(const std::string& folder, const nlohmann::json& job, const std::string& result_path) {
  const ModelConfig config = load_folder_config(folder);
  auto parameters = load_parameters(folder, config, dtype_of(job, "parameter_dtype"));
  const ModelSpec& spec = config.spec;
  const ParameterTable specs(parameters_of(spec));
  for (auto& [name, tensor] : parameters) tensor.requires_grad_(!is_buffer(specs.of(name).role));
  const auto attention = make_local(cpu_block_kernel());
  DecoderOptions options;
  options.gradient_checkpointing = job.value("checkpointing", false);
  options.compute_dtype = dtype_of(job, "compute_dtype");
  Decoder model(spec, parameters, *attention, options);
  const Batch batch = read_batch(job);
  const int64_t num_labels =
      std::max<int64_t>(batch.labels_T.ne(kIgnoreLabel).sum().item<int64_t>(), 1);

  std::vector<NamedTensor> results;
  for (const auto& output : job.at("outputs")) {
    if (output == "logits") {
      results.push_back({"logits", model.logits(batch).detach()});
    } else if (output == "logprobs") {
      results.push_back({"logprobs", model.token_logprobs(batch).detach()});
    } else if (output == "loss") {
      results.push_back({"loss", sft_loss(model, batch, num_labels).detach()});
    } else if (output == "gradients") {
      torch::autograd::backward({sft_loss(model, batch, num_labels)}, {});
      add_gradients(model, results);
    } else if (output == "auxiliary_gradients") {
      add_auxiliary_gradients(model, spec, batch, num_labels, job.at("coefficient"), results);
    } else if (output == "logprob_gradients") {
      torch::autograd::backward({model.token_logprobs(batch).mean().neg()}, {});
      add_gradients(model, results);
    }
  }
  write_safetensors(result_path, results);
  if (job.contains("save_to")) {
    save_model_folder(job["save_to"], config, parameters, dtype_of(job, "save_dtype"), folder,
                      job.value("save_shard_bytes", int64_t{5} << 30));
  }
}

void count_parameters(std::span<char* const> configs) {
  for (const char* path : configs) {
    const ModelSpec spec = load_model_config(path).spec;
    int64_t buffers = 0;
    for (const ParameterSpec& parameter : parameters_of(spec)) {
      if (is_buffer(parameter.role)) buffers += parameter.num_elements();
    }
    fmt::print("{} {}\n", parameter_count(spec), buffers);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const bool counts = argc > 2 && std::string_view(argv[1]) == "count";
  if (!counts && argc != 4) {
    std::cerr << "usage: model_probe <model folder> <job.json> <result.safetensors>\n"
                 "       model_probe count <config.json> ...\n";
    return 2;
  }
  try {
    if (counts) {
      count_parameters({argv + 2, static_cast<size_t>(argc - 2)});
      return 0;
    }
    std::ifstream file(argv[2]);
    run(argv[1], nlohmann::json::parse(file), argv[3]);
  } catch (const UserError& error) {
    std::cerr << "error: " << error.what() << "\n";
    return 1;
  }
  return 0;
}
