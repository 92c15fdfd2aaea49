#include "longspan/session/run_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>
#include <vector>

#include "longspan/base/user_error.h"
#include "longspan/config/config.h"
#include "longspan/config/global_batch.h"
#include "longspan/plan/degree_plans.h"
#include "longspan/plan/plan_checks.h"
#include "longspan/plan/plan_request.h"
#include "longspan/session/attended_model.h"
#include "longspan/text/counted.h"

namespace longspan {
namespace {

std::vector<std::array<int64_t, 3>> heads_of(const ModelSpec& model) {
  std::vector<std::array<int64_t, 3>> heads;
  for (const auto& [attention, count] : attentions_of(model)) {
    heads.push_back({attention.num_heads, attention.num_kv_heads, attention.key_dim});
  }
  return heads;
}

void require_no_pictures(const ModelConfig& model) {
  if (!model.spec.vision) return;
  throw UserError(
      "sequence_parallel_size: auto is for rows without pictures, and a data set has pictures. Set "
      "sequence_parallel_size to a number.");
}

RequestSettings request_settings(const Config& config) {
  return {config.model, config.data, config.optimization, config.memory, config.parallel};
}

}  // namespace

RunPlan plan_run(const Config& config, const Machine& machine, const Rendezvous& where,
                 const ModelConfig* model) {
  with_global_batch(config, where.world_size);  // refuses a batch that no number of steps makes
  RunPlan plan;
  plan.where = where;
  plan.deals_rows = deals_rows(config.parallel);
  plan.num_threads = machine.num_threads;
  plan.num_cores = machine.num_cores;
  plan.device = choose_device(config.model, machine.find_gpus);
  require_gpus(plan.device, std::max(where.local_world_size, where.local_rank + 1));
  plan.model = model != nullptr ? model_config_for(config, *model)
                                : model_config_for(config, config.model.model_name_or_path);
  plan.attended = attended_model(config, plan.model);
  const auto request_for = [&](const ModelSpec& model_spec) {
    return plan_request(request_settings(config), model_spec, where.world_size,
                        where.local_world_size, plan.device.cuda());
  };
  PlanRequest request = request_for(plan.attended);
  const std::string& ref_model = config.preferences.ref_model;
  if (!ref_model.empty()) {
    plan.reference = model_config_for(config, ref_model).spec;
    request.reference = {"ref_model " + ref_model, request_for(*plan.reference).layers};
  }
  if (has_own_degrees(config.parallel)) {
    require_no_pictures(plan.model);
    plan.by_degree = plans_by_degree(request);
    plan.tokens_per_rank = config.parallel.tokens_per_process.value_or(
        (config.data.cutoff_len + where.world_size - 1) / where.world_size);
  }
  plan.parallel = make_parallel_plan(plan.by_degree.empty() ? request : for_one_rank(request));
  plan.parallel.own_degrees = has_own_degrees(config.parallel);
  if (const MixtureOfExpertsSpec* experts =
          plan.reference ? experts_of(*plan.reference) : nullptr) {
    check_experts_divide(config.parallel.expert_parallel_size, experts->num_experts, "ref_model");
  }
  if (plan.reference && heads_of(*plan.reference) != heads_of(plan.attended)) {
    plan.reference_parallel = plan_for_heads(plan.parallel, request_for(*plan.reference));
  }
  plan.warning = warning_of_shards(request);
  return plan;
}

ParallelPlan RunPlan::of_longest_rows() const {
  if (by_degree.empty()) return parallel;
  ParallelPlan widest = by_degree.rbegin()->second;
  widest.shard_size = parallel.shard_size;
  return widest;
}

MemoryAccount account_of_run(const Config& config, const RunPlan& plan, const RowLengths& row) {
  return planned_account(
      {config.model, config.method, config.preferences, config.optimization, config.memory},
      plan.attended, plan.of_longest_rows(), row, plan.hardware(), plan.reference_model());
}

std::string device_text(const RunPlan& plan) {
  if (plan.device.cuda()) return plan.device.gpu_name;
  return fmt::format("CPU with {} each ({})", counted(plan.num_threads, "thread"),
                     plan.device.why_cpu);
}

}  // namespace longspan
