#include "longspan/train/run_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "longspan/comm/warm_up.h"
#include "longspan/cuda/cuda.h"
#include "longspan/memory/device_memory.h"
#include "longspan/memory/machine_memory.h"
#include "longspan/plan/rank_groups.h"
#include "longspan/settings/choices.h"
#include "longspan/text/bytes.h"

namespace longspan {
namespace {

/// Returns the bytes that a rank may use. Leaves a rest for gaps between tensors and for errors of
/// the estimate.
int64_t bytes_of_rank(const RunPlan& plan, int64_t beside_tensors) {
  constexpr double kShare = 0.9;
  const int64_t here = std::max(1, plan.where.local_world_size);
  if (!plan.device.cuda()) {
    return static_cast<int64_t>(kShare * static_cast<double>(machine_memory().bytes / here));
  }
  const int64_t gpus = std::max(1, plan.device.num_gpus);
  const int64_t on_one = (plan.where.processes_on_gpus() + gpus - 1) / gpus;
  const int64_t bytes =
      device_memory(device_of(plan.device, plan.own_gpu()), beside_tensors, on_one);
  return static_cast<int64_t>(kShare * static_cast<double>(bytes / on_one));
}

}  // namespace

std::string advice_on_shards(const AccountSettings& config, const RowLengths& row,
                             const RunPlan& plan, const TensorRoom& room) {
  const int here = plan.ranks_per_domain, all = plan.parallel.world_size;
  const int experts = plan.parallel.expert_parallel_size;
  if (zero_stage_of(config.memory) == 0 || config.memory.zero_shard_size || here < 2 ||
      here >= all || all % here != 0 || here % experts != 0) {
    return "";
  }
  ParallelPlan sharded_here = plan.of_longest_rows();
  sharded_here.shard_size = here;
  const MemoryAccount account =
      planned_account(config, {plan.attended, sharded_here}, row, plan.hardware(),
                      plan.reference_model(sharded_here));
  const bool on_cpu = !plan.device.cuda();
  const int64_t needed = account.device + account.beside_tensors + (on_cpu ? account.host : 0);
  const int64_t least = room.of_process(account.beside_tensors);
  const int64_t on_machine = account.host * std::min(here, plan.where.local_world_size);
  if (needed > least || on_machine > room.of_machine) return "";
  return fmt::format(
      "zero_shard_size: {0} would fit, too ({1} of the {2} of this process): {0} neighbouring "
      "processes then hold a copy of the states, and gather parameters over their fast link.",
      here, name_bytes(needed), name_bytes(least));
}

RunMemory plan_memory(const AccountSettings& config, const LongestRow& row, const RunPlan& plan,
                      const RunParameters& parameters, const Workers& workers) {
  // Memory that NCCL takes is then no longer free.
  if (plan.device.cuda() && !plan.device.shared) {
    warm_up(workers.mesh(), device_of(plan.device, plan.own_gpu()));
  }
  RunMemory memory;
  const ParallelPlan longest = plan.of_longest_rows();
  memory.facts = memory_facts(config, {plan.attended, longest}, parameters, row.lengths,
                              plan.hardware(), plan.reference_model(longest));
  if (plan.deals_rows) memory.facts.accumulates = true;  // several rows in each step
  for (const auto& [degree, of_rows] : plan.by_degree) {
    for (const RankRange& range : plan.ranks().ranges(degree)) {
      if (range.holds(plan.where.rank)) {
        memory.facts.num_groups += std::ssize(connected_groups(of_rows));
      }
    }
  }
  if (auto said =
          said_kept_layers(config.model, config.memory, plan.attended, plan.device.cuda())) {
    memory.kept = *std::move(said);
  } else {
    // Other ranks may have less memory.
    int64_t least = bytes_of_rank(plan, account_of(memory.facts).beside_tensors);
    for (const std::string& bytes : workers.world().gather_text(fmt::format("{}", least))) {
      least = std::min<int64_t>(least, std::stoll(bytes));
    }
    memory.kept = kept_layers_that_fit(memory.facts, plan.attended, least);
  }
  keep_layers(memory.facts, plan.attended, memory.kept.count);
  memory.text = row.text;
  if (!row.text.empty() && !memory.kept.reason.empty()) memory.text += "\n";
  memory.text += memory.kept.reason;
  const TensorRoom room{[&](int64_t beside_tensors) { return bytes_of_rank(plan, beside_tensors); },
                        machine_memory().bytes};
  if (const std::string advice = advice_on_shards(config, row.lengths, plan, room);
      !advice.empty()) {
    memory.text += (memory.text.empty() ? "" : "\n") + advice;
  }
  return memory;
}

}  // namespace longspan
