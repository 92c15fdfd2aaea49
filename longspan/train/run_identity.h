// Identity of a run: what two starts of the program must share to be the same run.
#pragma once

#include "longspan/comm/mesh.h"
#include "longspan/models/model_config.h"
#include "longspan/saving/training_state.h"
#include "longspan/session/trained_model.h"
#include "longspan/train/run_data.h"

namespace longspan {

struct Config;

/// Returns the identity of this start without the contents of files, which are read later. `model`:
/// as it is trained, with rope_scaling.
RunIdentity identity_of(const Config& config, const Mesh& mesh, const ModelConfig& model,
                        const TrainedModel& trained, const RunData& data,
                        const LocalTime& template_time);

}  // namespace longspan
