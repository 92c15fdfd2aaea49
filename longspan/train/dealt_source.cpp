#include "longspan/train/dealt_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "longspan/account/held_parameters.h"
#include "longspan/base/user_error.h"
#include "longspan/data/dealt_epochs.h"
#include "longspan/plan/row_costs.h"
#include "longspan/session/trained_model.h"
#include "longspan/settings/choices.h"
#include "longspan/text/counted.h"

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
          cluster_model(plan.device.cuda(), plan.where.local_world_size, element_bytes)};
}

/// Each rank makes its dealing from its own view. Throws UserError on all ranks unless the views
/// are equal. Collective.
void require_equal_plans(const Group& world, const RunPlan& plan,
                         const std::map<int, ParallelPlan>& plans) {
  std::string own = counted(plan.where.local_world_size, "process") + " on its machine";
  for (const auto& [degree, of_rows] : plans) {
    own += fmt::format("; {}: {}", degree, describe_method(of_rows));
  }
  const std::vector<std::string> all = world.gather_text(own);
  const auto other = std::ranges::find_if(all, [&](const auto& text) { return text != all[0]; });
  if (other == all.end()) return;
  throw UserError(fmt::format(
      "The ranks would deal rows in different ways. Rank 0 has {}. Rank {} has {}. Start as many "
      "processes on each machine, or leave out balance_batches and sequence_parallel_size: auto.",
      all[0], other - all.begin(), *other));
}

}  // namespace

std::unique_ptr<ExampleSource> dealt_source(const DealtSettings& config, const RunPlan& plan,
                                            const ExampleSet& examples, const Session& session) {
  const Mesh& mesh = session.mesh();
  const int64_t batch_size = config.optimization.per_device_train_batch_size;
  const bool has_own_ranks = !plan.by_degree.empty();
  std::map<int, ParallelPlan> plans = plan.by_degree;
  if (!has_own_ranks) plans[plan.parallel.sequence_size] = plan.parallel;
  require_equal_plans(mesh.world, plan, plans);
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
