// What is trained, by finetuning_type and stage, and what it is compared with.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "longspan/comm/mesh.h"
#include "longspan/models/decoder.h"
#include "longspan/models/lora.h"
#include "longspan/models/model_config.h"
#include "longspan/optim/sharded_parameters.h"
#include "longspan/plan/held_parameters.h"
#include "longspan/sequence_parallel/sequence_parallel.h"
#include "longspan/stages/reference.h"

namespace longspan {

struct Config;

struct TrainedModel {
  std::vector<NamedTensor> parameters;  // on the device; requires_grad says what is trained
  /// All parameters of the model, in the dtypes that they are held in, also experts that only other
  /// ranks have.
  std::vector<HeldParameter> all;
  ParameterTable specs;  // of all of them
  std::optional<LoraShape> lora;
  DecoderOptions options;
  /// Where `parameters` come from when something is divided among the ranks or offloaded.
  std::unique_ptr<ShardedParameters> sharded;

  /// The parameters of this rank, for the account.
  std::vector<HeldParameter> held() const;
  int64_t num_parameters() const;
  int64_t num_trained() const;
};

/// How the configuration divides and offloads a model's states; nullopt: not at all.
std::optional<ShardingOptions> sharding_of(const Config& config, const Mesh& mesh,
                                           at::Device device);

/// Weights of model_name_or_path; adapters (merged, or to be trained on, or new), the value head of
/// a reward model (found in the folder, or new), and which of them are trained. Under zero_stage 3
/// no rank holds more than one whole parameter at a time. Throws UserError.
TrainedModel load_trained_model(const Config& config, const ModelConfig& model,
                                const std::optional<ShardingOptions>& sharding, at::Device device);

/// Checks ahead of load_trained_model and make_reference what costs little. Reads no weights.
/// Throws UserError.
void check_trained_model(const Config& config, const ModelConfig& model);

/// ref_model with ref_model_adapters; else, under LoRA, the trained model without its adapter (also
/// where that was there before training, as in LLaMA-Factory); else a copy of the model as it is at
/// the start.
/// `policy` and `attention` must outlive it.
std::unique_ptr<Reference> make_reference(const Config& config, const TrainedModel& trained,
                                          const ModelConfig& model, Decoder& policy,
                                          SequenceParallel& attention,
                                          const std::optional<ShardingOptions>& sharding,
                                          at::Device device);

}  // namespace longspan
