#include "longspan/train/run_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "longspan/cuda/cuda.h"
#include "longspan/memory/device_memory.h"
#include "longspan/memory/machine_memory.h"
#include "longspan/plan/rank_groups.h"

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
  const int64_t gpus = std::max(1, plan.device.num_gpus), on_one = (here + gpus - 1) / gpus;
  const int64_t bytes =
      device_memory(device_of(plan.device, plan.own_gpu()), beside_tensors, on_one);
  return static_cast<int64_t>(kShare * static_cast<double>(bytes / on_one));
}

}  // namespace

RunMemory plan_memory(const AccountSettings& config, const LongestRow& row, const RunPlan& plan,
                      const RunParameters& parameters, const Workers& workers) {
  RunMemory memory;
  memory.facts = memory_facts(config, plan.attended, plan.of_longest_rows(), parameters,
                              row.lengths, plan.hardware(), plan.reference_model());
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
  return memory;
}

}  // namespace longspan
