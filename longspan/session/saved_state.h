// The optimizer's state and the trained weights of a session, in a checkpoint.
#pragma once

#include <string>
#include <vector>

#include "longspan/optim/state_shard.h"
#include "longspan/saving/saving.h"
#include "longspan/session/model_update.h"

namespace longspan {

/// Returns the optimizer's state on this rank, with the masters of weights that `saver` rounds.
std::vector<StateSource> optimizer_state(const ModelUpdate& update, const ModelSaver& saver);

/// Reads the trained weights and the optimizer's state of this rank. Afterwards, call
/// update.publish() on all ranks. Throws UserError.
void load_state(const std::string& checkpoint, const ModelSaver& saver, ModelUpdate& update);

}  // namespace longspan
