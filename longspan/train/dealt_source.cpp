#include "longspan/train/dealt_source.h"

#include <map>
#include <utility>

#include "longspan/account/held_parameters.h"
#include "longspan/data/dealt_epochs.h"
#include "longspan/plan/row_costs.h"
#include "longspan/session/trained_model.h"
#include "longspan/settings/choices.h"

namespace longspan {
namespace {

RowCosts costs_of(const DealtSettings& config, const RunPlan& plan, const Session& session,
                  std::map<int, ParallelPlan> plans) {
  const int64_t element_bytes = computes_in_bf16(config.model, config.optimization) ? 2 : 4;
  return {std::move(plans),
          {.layers = attentions_of(plan.attended),
           .parameters_per_token = static_cast<double>(
               num_parameters_without_embeddings(session.trained().all, plan.model.spec)),
           .element_bytes = element_bytes,
           .checkpointing = !config.model.disable_gradient_checkpointing},
          cluster_model(plan.device.cuda(), plan.where.local_world_size, element_bytes)};
}

}  // namespace

std::unique_ptr<ExampleSource> dealt_source(const DealtSettings& config, const RunPlan& plan,
                                            const ExampleSet& examples, const Session& session) {
  const Mesh& mesh = session.mesh();
  const int num_ranks = mesh.world.size();
  const int64_t batch_size = config.optimization.per_device_train_batch_size;
  const bool has_own_ranks = has_own_degrees(config.parallel);
  std::map<int, ParallelPlan> plans = plan.by_degree;
  if (!has_own_ranks) plans[plan.parallel.sequence_size] = plan.parallel;
  DealtEpochs::Options options{.rules = {.num_ranks = num_ranks, .degrees = {}},
                               .rank = mesh.world.rank(),
                               .has_own_ranks = has_own_ranks,
                               .together = session.idle_rows()};
  DealingRules& rules = options.rules;
  for (const auto& [degree, own] : plans) rules.degrees.push_back(degree);
  rules.aligned = !has_own_ranks;
  if (has_own_ranks) {
    rules.tokens_per_rank = (config.data.cutoff_len + num_ranks - 1) / num_ranks;
  } else {
    rules.examples_per_row = batch_size;
  }
  rules.seconds = [costs = costs_of(config, plan, session, std::move(plans))](
                      int64_t length, int degree) { return costs.seconds(length, degree); };
  return std::make_unique<DealtEpochs>(
      examples,
      Loader(examples.size(), batch_size * mesh.data.size(), /*data_rank=*/0, /*data_size=*/1,
             !config.method.disable_shuffling, config.optimization.seed),
      std::move(options));
}

}  // namespace longspan
