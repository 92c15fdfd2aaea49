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
#include "longspan/cuda/kernels.h"
#include "longspan/plan/degree_plans.h"
#include "longspan/plan/plan_checks.h"
#include "longspan/plan/plan_request.h"
#include "longspan/session/attended_model.h"
#include "longspan/settings/choices.h"
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

void require_nccl(const ModelSettings& model, const DeviceChoice& device) {
  if (reduce_scatter_of(model) != ReduceScatter::kNccl || uses_nccl(model, device.cuda())) return;
  throw UserError(fmt::format(
      "reduce_scatter: nccl needs GPUs, one for each process ({}); leave the key out, or take "
      "reduce_scatter: exchange.",
      device.cuda() ? "share_gpus: true" : device.why_cpu));
}

/// Returns a warning if a run that is to have the same bits each time sums gradients in NCCL's
/// order.
std::string warning_of_sums(const ModelSettings& model, int world_size) {
  const bool by_nccl = reduce_scatter_of(model) == ReduceScatter::kNccl;
  if (!model.full_determinism || !by_nccl || world_size == 1) return "";
  return "full_determinism: true with reduce_scatter: nccl: NCCL sums gradients in an order of its "
         "own. The run has the same bits again only on the same GPUs and machines, with the same "
         "NCCL and the same settings of NCCL. reduce_scatter: exchange sums in the order of "
         "processes, on any machines.";
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
  require_gpus(plan.device,
               where.has_own_gpus ? 1 : std::max(where.local_world_size, where.local_rank + 1));
  require_nccl(config.model, plan.device);
  plan.model = model != nullptr ? model_config_for(config, *model)
                                : model_config_for(config, config.model.model_name_or_path);
  plan.attended = attended_model(config, plan.model);
  plan.ranks_per_domain =
      std::min(config.parallel.fast_domain_size.value_or(where.local_world_size), where.world_size);
  const auto request_for = [&](const ModelSpec& model_spec) {
    return plan_request(request_settings(config), model_spec, where.world_size,
                        plan.ranks_per_domain, plan.device.cuda());
  };
  PlanRequest request = request_for(plan.attended);
  plan.network = request.network;
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
    if (has_own_degrees(config.parallel)) {
      throw UserError(fmt::format(
          "sequence_parallel_size: auto: ref_model {} has other attention heads than {}, and both "
          "models compute a row with the same processes. Give a number, or a ref_model with equal "
          "heads.",
          ref_model, config.model.model_name_or_path));
    }
    plan.reference_parallel = plan_for_heads(plan.parallel, request_for(*plan.reference));
  }
  for (const std::string& warning :
       {warning_of_shards(request), warning_of_sums(config.model, where.world_size)}) {
    if (!warning.empty()) plan.warning += (plan.warning.empty() ? "" : " ") + warning;
  }
  plan.settings = settings_of_all_ranks(config);
  return plan;
}

ParallelPlan RunPlan::of_longest_rows() const {
  if (by_degree.empty()) return parallel;
  ParallelPlan widest = by_degree.rbegin()->second;
  widest.shard_size = parallel.shard_size;
  widest.own_degrees = parallel.own_degrees;
  return widest;
}

Hardware RunPlan::hardware() const {
  return {.cuda = device.cuda(),
          .num_threads = num_threads,
          .composes_rows = device.cuda() && cuda::kernels_were_refused()};
}

MemoryAccount account_of_run(const Config& config, const RunPlan& plan, const RowLengths& row) {
  const ParallelPlan longest = plan.of_longest_rows();
  return planned_account({config.model, config.method, config.preferences, config.optimization,
                          config.memory, plan.model.stored.four_bits(), &config.output},
                         {plan.attended, longest}, row, plan.hardware(),
                         plan.reference_model(longest));
}

std::string device_text(const RunPlan& plan) {
  if (plan.device.cuda()) return plan.device.gpu_name;
  return fmt::format("CPU with {} each ({})", counted(plan.num_threads, "thread"),
                     plan.device.why_cpu);
}

}  // namespace longspan
