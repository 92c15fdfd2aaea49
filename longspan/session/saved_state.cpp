#include "longspan/session/saved_state.h"

#include <map>
#include <utility>

#include "longspan/checkpoint/stacked_adapters.h"
#include "longspan/checkpoint/state_parts.h"
#include "longspan/checkpoint/stored_tensors.h"
#include "longspan/config/config.h"
#include "longspan/data/run_tokenizer.h"
#include "longspan/models/composite.h"
#include "longspan/models/model_config.h"
#include "longspan/saving/pissa_folders.h"

namespace longspan {
namespace {

/// Matrices of adapters that are saved as one matrix for a whole stack: those of part i of E are
/// rows of A and every E-th column of B (checkpoint/stacked_adapters.h).
std::map<std::string, StoredWeights> stacked_matrices(const SavedModel& saved) {
  std::map<std::string, StoredWeights> stored;
  const int64_t r = saved.lora->r;
  for (const StackedAdapter& stack : stacked_adapters(saved.config.spec, saved.lora->modules)) {
    const int64_t E = std::ssize(stack.parts);
    for (int64_t i = 0; i < E; ++i) {
      const ParameterSpec& part = stack.parts[i];
      stored[lora_a_name(part)] = {stack.a_name, i * r * part.shape[1], {}, {}};
      stored[lora_b_name(part)] = {stack.b_name, i, {part.shape[0], r}, {r * E, E}};
    }
  }
  return stored;
}

/// Returns the place of a parameter in a model's files.
StoredWeights place_in_files(const ModelConfig& config, const ParameterSpec& parameter) {
  StoredWeights place{
      name_in_files(config, parameter.stored_as), begin_in_stored(parameter), {}, {}};
  if (is_turned(parameter)) {
    place.shape = parameter.shape;
    place.strides = {1, parameter.shape[0]};
  }
  return place;
}

/// Returns the places of the trained shards in a checkpoint's weights.
std::map<std::string, StoredWeights> stored_weights(const SavedModel& saved,
                                                    const std::vector<ParameterShard>& shards) {
  std::map<std::string, StoredWeights> stored;
  if (saved.lora) {
    stored = stacked_matrices(saved);
    for (const ParameterShard& shard : shards) {
      const std::string& name = shard.parameter;
      stored.try_emplace(name, StoredWeights{name_in_adapter(saved.config, name)});
    }
    return stored;
  }
  for (const ParameterShard& shard : shards) {
    stored[shard.parameter] = place_in_files(saved.config, shard.spec);
  }
  return stored;
}

}  // namespace

SavedModel saved_model(const Config& config, const ModelConfig& model, const TrainedModel& trained,
                       const std::optional<SavedChat>& chat) {
  // Adapters are saved in fp32, as they are held.
  const at::ScalarType of_adapter = config.model.pure_bf16 ? at::kBFloat16 : at::kFloat;
  return {.config = model,
          .dtype = trained.lora ? of_adapter : trained.options.compute_dtype,
          .source_folder = config.model.model_name_or_path,
          .lora = trained.lora,
          .chat = chat,
          .specs = trained.specs,
          .all = trained.all,
          .pissa = pissa_of(config.method, trained.first_adapter),
          .added = added_tokens(config.data)};
}

std::vector<StateSource> optimizer_state(const ModelUpdate& update, const ModelSaver& saver) {
  std::vector<StateSource> states = update.optimizer().state();
  for (size_t i = 0; i < states.size(); ++i) {
    const ParameterShard& trained = update.shards()[i];
    if (saver.saves_exactly({trained.parameter, trained.values})) continue;
    states[i] = with_master(std::move(states[i]), trained.values);
  }
  return states;
}

TrainingState state_of_session(const Mesh& mesh, int64_t step, const std::string& source) {
  TrainingState state;
  state.world_size = mesh.world.size();
  state.sequence_size = mesh.sequence.size();
  state.source = source;
  state.totals.progress.step = step;
  return state;
}

void load_state(const std::string& checkpoint, const ModelSaver& saver, ModelUpdate& update) {
  load_optimizer(StateReader(checkpoint, stored_weights(saver.model(), update.shards())),
                 update.optimizer());
}

}  // namespace longspan
