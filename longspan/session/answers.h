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

/// Gathers the parameters on the CPU of rank 0 (`on_all_ranks`: of each rank), merges adapters into
/// the gathered copy, and generates the answers on this CPU. With `on_all_ranks`, the ranks divide
/// the prompts, and go_on() of any rank ends the answers of all. Returns the answers on every rank.
/// Throws as check_prompts() on all ranks. Collective.
std::vector<Answer> answers_of(const AnsweringModel& model,
                               const std::vector<std::vector<int32_t>>& prompts,
                               const GenerationOptions& options, int64_t num_at_a_time,
                               const std::function<bool()>& go_on, bool on_all_ranks);

/// Throws UserError for a prompt that is empty or not below max_position_embeddings, or has ids
/// outside the vocabulary.
void check_prompts(const ModelConfig& model, const std::vector<std::vector<int32_t>>& prompts);

}  // namespace longspan
