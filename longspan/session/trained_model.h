// Makes the trained model by finetuning_type and stage, and the reference.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "longspan/account/held_parameters.h"
#include "longspan/comm/mesh.h"
#include "longspan/models/decoder.h"
#include "longspan/models/lora.h"
#include "longspan/models/model_config.h"
#include "longspan/optim/packed_parameters.h"
#include "longspan/optim/sharded_parameters.h"
#include "longspan/sequence_parallel/sequence_parallel.h"
#include "longspan/session/gradient_reduction.h"
#include "longspan/stages/reference.h"

namespace longspan {

struct Config;

struct TrainedModel {
  std::vector<NamedTensor> parameters;  // on the device; requires_grad marks the trained ones
  /// All parameters of the model, in the dtypes in which the run holds them, including experts that
  /// only other ranks have.
  std::vector<HeldParameter> all;
  ParameterTable specs;  // of all parameters
  std::optional<LoraShape> lora;
  std::vector<NamedTensor> first_adapter;  // what a new adapter takes from the weights: PiSSA, DoRA
  DecoderOptions options;
  /// The owner of `parameters`, except those of `packed`, if anything is sharded or offloaded.
  std::unique_ptr<ShardedParameters> sharded;
  /// The owner of the frozen matrices that are held in 4 or 8 bits; null: none are.
  std::unique_ptr<PackedParameters> packed;
  std::unique_ptr<WholeGradientSums> sums;  // by sum_over(); null: there are none

  /// Returns the hooks of `packed` or `sharded`; null: all parameters are always there.
  ParameterHooks* hooks() const;
  /// Prepares the sums of gradients over `world`, unless `sharded` sums them. Changes the hooks of
  /// `options`; a tower, whose gradients are complete last, needs no hooks for these sums.
  void sum_over(const Group& world);
  /// Returns `parameters`, and the codes of `packed` that products take, for the decoder.
  std::vector<NamedTensor> in_use() const;
  /// Returns the parameters of this rank, for the memory estimate.
  std::vector<HeldParameter> held() const;
  int64_t num_parameters() const;
  int64_t num_trained() const;
};

/// Returns the options by which the configuration shards and offloads a model's states; nullopt:
/// neither sharding nor offloading.
std::optional<ShardingOptions> sharding_of(const Config& config, const Mesh& mesh,
                                           at::Device device);

/// Parameters of a model in memory, which replace the parameters of model_name_or_path; null: the
/// folder's parameters are loaded.
using GivenParameters = const std::vector<NamedTensor>*;

/// The model whose parameters are made, and the device and sharding of the parameters.
struct ParameterPlace {
  const ModelConfig& model;
  const std::optional<ShardingOptions>& sharding;
  at::Device device;
  GivenParameters given = nullptr;
  // Needed if the reference model has a tower: the reader of pixels, and the kernel for attention
  // within pictures.
  const FramePatches* patches = nullptr;
  const BlockKernel* kernel = nullptr;
};

/// Loads the weights of model_name_or_path (or uses `place.given`), the adapters (merged, trained
/// further, or new) and the value head of a reward model (from the folder, or new). Selects the
/// trained parameters. With zero_stage 3 no rank holds more than one whole parameter at a time.
/// Throws UserError.
TrainedModel load_trained_model(const Config& config, const ParameterPlace& place);

/// Runs the checks of load_trained_model() and make_reference() that need no weights, in advance.
/// Throws UserError.
void check_trained_model(const Config& config, const ModelConfig& model);

/// Makes the reference: ref_model with ref_model_adapters; otherwise, with LoRA, the trained model
/// without its adapter (even if the adapter existed before training, as in LLaMA-Factory);
/// otherwise a copy of the initial model. `attention`: made for the reference's heads. `policy` and
/// `attention` must outlive the result. `follows_rows`: the attention of each row serves the
/// reference's heads, and is used (reference_model()).
std::unique_ptr<Reference> make_reference(const Config& config, const ParameterPlace& place,
                                          const TrainedModel& trained, Decoder& policy,
                                          SequenceParallel& attention, bool follows_rows = false);

}  // namespace longspan
