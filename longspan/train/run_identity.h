// What makes two starts of the program the same run.
#pragma once

#include "longspan/comm/mesh.h"
#include "longspan/models/model_config.h"
#include "longspan/saving/training_state.h"
#include "longspan/train/run_data.h"
#include "longspan/train/trained_model.h"

namespace longspan {

struct Config;

/// The identity of this start, but for the contents of files, which are read later. `model`: with
/// rope_scaling, as it is trained.
RunIdentity identity_of(const Config& config, const Mesh& mesh, const ModelConfig& model,
                        const TrainedModel& trained, const RunData& data, const Moment& moment);

}  // namespace longspan
