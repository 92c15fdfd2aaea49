// Generates answers with a model in training.
#pragma once

#include <cstdint>
#include <vector>

#include "longspan/comm/group.h"
#include "longspan/generation/generate.h"
#include "longspan/liveness/notices.h"
#include "longspan/models/model_config.h"
#include "longspan/session/trained_model.h"

namespace longspan {

struct AnsweringModel {
  const ModelConfig& model;
  const TrainedModel& trained;
  const Group& world;
  Notices& notices;
};

/// Gathers the parameters on rank 0's CPU, merges adapters into the gathered copy, and generates
/// the answers on this CPU. Returns the answers on every rank. Throws UserError on all ranks for a
/// prompt that is empty or not below max_position_embeddings, or has ids outside the vocabulary.
/// Collective.
std::vector<Answer> answers_of(const AnsweringModel& model,
                               const std::vector<std::vector<int32_t>>& prompts,
                               const GenerationOptions& options, int64_t num_at_a_time,
                               const std::function<bool()>& go_on);

}  // namespace longspan
