#include "longspan/train/run_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "longspan/cuda/cuda.h"
#include "longspan/memory/device_memory.h"
#include "longspan/memory/machine_memory.h"
#include "longspan/registers/stage.h"
#include "longspan/report/memory_report.h"
#include "longspan/settings/method_settings.h"
#include "longspan/settings/optimization_settings.h"
#include "longspan/settings/preference_settings.h"

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

/// Rows of the caller's are not known yet: each example may have cutoff_len tokens.
RowLengths lengths_of(const AccountSettings& config, int64_t cutoff_len, const ExampleSet& train,
                      int sequence_size) {
  const int64_t batch_size = config.optimization.per_device_train_batch_size;
  if (stage_of(config.method).rollouts != RolloutUse::kNone) {
    // Rollouts are not known yet: each group may have one answer of cutoff_len with its prompt, and
    // further answers.
    const PolicySettings& policy = config.preferences.policy;
    const int64_t answer = std::min(policy.max_completion_length, cutoff_len);
    const int64_t tokens = batch_size * (cutoff_len + (policy.num_generations - 1) * answer);
    return {.num_tokens = tokens, .num_labels = batch_size * policy.num_generations * answer};
  }
  if (!train.empty())
    return row_lengths(train, batch_size, stage_of(config.method).rows, sequence_size);
  const int64_t num_tokens = batch_size * cutoff_len;
  return {.num_tokens = num_tokens, .num_labels = num_tokens};
}

}  // namespace

RunMemory plan_memory(const AccountSettings& config, int64_t cutoff_len, const RunPlan& plan,
                      const RunData& data, const RunParameters& parameters,
                      const Workers& workers) {
  RunMemory memory;
  memory.facts = memory_facts(
      config, plan.attended, plan.parallel, parameters,
      lengths_of(config, cutoff_len, *data.train, plan.parallel.sequence_size), plan.hardware());
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
  return memory;
}

}  // namespace longspan
