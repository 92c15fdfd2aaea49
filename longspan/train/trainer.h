// The main job: one readable step().
#pragma once

#include "longspan/comm/mesh.h"
#include "longspan/config/config.h"

namespace longspan {

/// `longspan train` in one worker process, start to end: reads data and model, trains, evaluates,
/// saves. Returns the exit status. Throws UserError (on every rank) for what the user can mend.
int run_training(const Config& config, const Rendezvous& where);

}  // namespace longspan
