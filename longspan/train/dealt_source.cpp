#include "longspan/train/dealt_source.h"

#include <map>
#include <utility>

#include "longspan/account/held_parameters.h"
#include "longspan/data/dealt_epochs.h"
#include "longspan/plan/row_costs.h"
#include "longspan/sequence_parallel/row_groups.h"
#include "longspan/session/trained_model.h"
#include "longspan/settings/choices.h"

namespace longspan {
namespace {

RowCosts costs_of(const DealtSettings& config, const RunPlan& plan, const Session& session,
                  std::map<int, ParallelPlan> plans) {
  const ModelSpec& spec = plan.model.spec;
  const int64_t element_bytes = computes_in_bf16(config.model, config.optimization) ? 2 : 4;
  return {std::move(plans),
          {.layers = attentions_of(plan.attended),
           .parameters_per_token =
               static_cast<double>(num_parameters_without_embeddings(session.trained().all, spec) +
                                   (spec.tied_head ? spec.vocab_size * spec.hidden_size : 0)),
           .element_bytes = element_bytes,
           .checkpointing = !config.model.disable_gradient_checkpointing},
          cluster_model(plan.device.cuda(), plan.ranks_per_domain, element_bytes, plan.network)};
}

}  // namespace

std::unique_ptr<ExampleSource> dealt_source(const DealtSettings& config, const RunPlan& plan,
                                            const ExampleSet& examples, const Session& session) {
  const Mesh& mesh = session.mesh();
  const int64_t batch_size = config.optimization.per_device_train_batch_size;
  const bool has_own_ranks = !plan.by_degree.empty();
  std::map<int, ParallelPlan> plans = plan.by_degree;
  if (!has_own_ranks) plans[plan.parallel.sequence_size] = plan.parallel;
  // With plans by degree, the session has compared them before it made their groups.
  if (!has_own_ranks) require_equal_plans(mesh.world, plan.ranks(), plans);
  DealtEpochs::Options options{
      .rules = {.ranks = plan.ranks(), .degrees = {}, .together = session.idle_rows()},
      .rank = mesh.world.rank(),
      .has_own_ranks = has_own_ranks};
  DealingRules& rules = options.rules;
  for (const auto& [degree, own] : plans) rules.degrees.push_back(degree);
  if (has_own_ranks) {
    rules.tokens_per_rank = plan.tokens_per_rank;
  } else {
    rules.examples_per_row = batch_size;
    rules.ranks.ranks_per_machine = plan.parallel.sequence_size;  // only the run's groups
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
