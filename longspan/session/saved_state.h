// Saves and loads the optimizer's state and the trained weights of a session in a checkpoint.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "longspan/comm/mesh.h"
#include "longspan/optim/state_shard.h"
#include "longspan/saving/saving.h"
#include "longspan/saving/training_state.h"
#include "longspan/session/model_update.h"
#include "longspan/session/trained_model.h"

namespace longspan {

struct Config;

/// Describes the saved model of a run.
SavedModel saved_model(const Config& config, const ModelConfig& model, const TrainedModel& trained,
                       const std::optional<SavedChat>& chat);

/// Returns the optimizer's state on this rank, with the masters (values in higher precision) of the
/// weights that `saver` rounds.
std::vector<StateSource> optimizer_state(const ModelUpdate& update, const ModelSaver& saver);

/// Returns the rest of a session's state after `step` steps. `source`: the state of the caller's
/// source of rows.
TrainingState state_of_session(const Mesh& mesh, int64_t step, const std::string& source);

/// Reads the trained weights and the optimizer's state of this rank. Afterwards, call
/// update.publish() on all ranks. Throws UserError.
void load_state(const std::string& checkpoint, const ModelSaver& saver, ModelUpdate& update);

}  // namespace longspan
