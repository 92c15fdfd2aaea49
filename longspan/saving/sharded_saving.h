// A model folder written by all ranks, of which none holds the model.
#pragma once

#include <string>

#include "longspan/comm/group.h"
#include "longspan/comm/notices.h"
#include "longspan/optim/sharded_parameters.h"
#include "longspan/saving/saving.h"

namespace longspan {

/// What ModelSaver writes, into a folder that is there and that every rank sees: each rank writes a
/// weight file of its own, about equal in bytes, while units are gathered one after the other; rank
/// 0 writes the rest. Of an adapter, rank 0 writes all. Returns the name of this rank's weight
/// file, or nothing. Collective; throws as all_or_none.
std::string write_sharded_model(const std::string& folder, const SavedModel& model,
                                ShardedParameters& parameters, const Group& world,
                                Notices& notices);

}  // namespace longspan
