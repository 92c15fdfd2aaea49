#include "longspan/account/saved_copy.h"

#include <algorithm>

#include "longspan/account/run_account.h"
#include "longspan/registers/update_rule.h"
#include "longspan/settings/choices.h"
#include "longspan/settings/model_settings.h"
#include "longspan/settings/optimization_settings.h"
#include "longspan/settings/output_settings.h"

namespace longspan {
namespace {

constexpr int64_t kMasterBytes = 4;

}  // namespace

int64_t saved_copy_bytes(const AccountSettings& settings, const ParallelPlan& plan,
                         const RunParameters& parameters) {
  if (settings.output == nullptr) return 0;
  const OutputSettings& output = *settings.output;
  const bool shared = divides_values(settings.memory) || plan.expert_parallel_size > 1;
  const bool saves = interval_of(output.save_strategy) != Interval::kNever;
  if (!saves || (!output.save_async && !shared)) return 0;
  const bool adapter = trains_adapter(settings.method);
  const bool bf16 = computes_in_bf16(settings.model, settings.optimization);
  const bool in_bf16 = adapter ? settings.model.pure_bf16 : bf16;
  const bool rounds = in_bf16 && !settings.model.pure_bf16;
  const UpdateRule& rule = update_rule_of(settings.optimization);
  int64_t weights = 0, states = 0;  // of all ranks
  for (const HeldParameter& parameter : parameters.used) {
    if (adapter && !parameter.trained) continue;
    const int64_t ranks = parameter.spec.expert ? plan.expert_parallel_size : 1;
    const int64_t elements = parameter.spec.num_elements();
    weights += ranks * elements * (in_bf16 ? 2 : 4);
    if (parameter.trained) {
      states += ranks * (rule.saved_bytes(parameter) + (rounds ? kMasterBytes * elements : 0));
    }
  }
  // Rank 0 writes an adapter, and a model that every rank holds.
  const int64_t copied = shared && !adapter ? weights / plan.world_size : weights;
  if (!output.save_async) return std::min(copied, kSavedRoundBytes);
  return copied + (output.save_only_model ? 0 : states / plan.world_size);
}

}  // namespace longspan
