// A model folder written by all ranks, none of which holds the whole model.
#pragma once

#include <string>

#include "longspan/comm/group.h"
#include "longspan/liveness/notices.h"
#include "longspan/optim/sharded_parameters.h"
#include "longspan/saving/saving.h"

namespace longspan {

/// Writes the same files as ModelSaver into an existing folder that every rank sees. Each rank
/// writes a weight file of about the same size while units are gathered one after the other; rank 0
/// writes the rest. For an adapter, rank 0 writes everything. Returns the name of this rank's
/// weight file, or an empty string. Collective; throws as all_or_none.
std::string write_sharded_model(const std::string& folder, const SavedModel& model,
                                ShardedParameters& parameters, const Group& world,
                                Notices& notices);

}  // namespace longspan
