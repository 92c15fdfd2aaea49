#include "longspan/session/load_kernels.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "longspan/attention/call_plan.h"
#include "longspan/attention/load_attention.h"
#include "longspan/config/config.h"
#include "longspan/cuda/cuda.h"
#include "longspan/cuda/kernels.h"
#include "longspan/kernels/grouped_library.h"
#include "longspan/liveness/agreement.h"
#include "longspan/plan/geometry.h"
#include "longspan/rows/packing.h"
#include "longspan/session/backends.h"
#include "longspan/session/choose_gemms.h"
#include "longspan/settings/choices.h"
#include "longspan/spec/expert_gemms.h"
#include "longspan/spec/model_spec.h"
#include "longspan/text/deferred_warnings.h"

namespace longspan {
namespace {

/// Says the warnings of all ranks once each, with the ranks unless they are all. Collective.
void say_warnings(const Group& world, const Events& events) {
  std::map<std::string, std::vector<int>> ranks_of;
  const std::string own = fmt::format("{}", fmt::join(take_deferred_warnings(), "\n"));
  const std::vector<std::string> texts = world.gather_text(own);
  for (int rank = 0; rank < world.size(); ++rank) {
    if (!texts[rank].empty()) ranks_of[texts[rank]].push_back(rank);
  }
  for (const auto& [text, ranks] : ranks_of) {
    const bool are_all = static_cast<int>(ranks.size()) == world.size();
    const std::string where =
        are_all ? ""
                : fmt::format("\n(Only of rank{} {}: the other ranks wait for slower ones.)",
                              ranks.size() == 1 ? "" : "s", fmt::join(ranks, ", "));
    if (world.rank() == 0) events.tell(Said{.text = text + where, .of_any_rank = true});
  }
}

/// Returns the attentions of a model's layers, with the blocks of all ranks in the longest row.
std::vector<UsedAttention> attentions_of_layers(const ModelSpec& model, const ParallelPlan& plan,
                                                int64_t most_tokens) {
  std::vector<UsedAttention> uses;
  for (const auto& [spec, count] : attentions_of(model)) {
    UsedAttention& use = uses.emplace_back(UsedAttention{spec, most_tokens});
    if (most_tokens < kLeastForCudnn) continue;
    const Packing padded = plan.method->padded_row(plan, Packing::single(most_tokens));
    for (int rank = 0; rank < plan.sequence_size; ++rank) {
      for (const AttentionStep& step : plan.method->geometry(plan, spec, padded, rank).steps) {
        for (const AttentionCall& call : step.calls) {
          for (const Block& block : call.blocks) {
            use.of_longest_row.push_back({call.queries.num_heads, call.keys.num_heads, block});
          }
        }
      }
    }
  }
  return uses;
}

std::vector<UsedAttention> attentions_of_run(const RunPlan& plan, int64_t most_tokens) {
  const ParallelPlan longest = plan.of_longest_rows();
  std::vector<UsedAttention> uses = attentions_of_layers(plan.model.spec, longest, most_tokens);
  if (const std::optional<PlannedModel> reference = plan.reference_model(longest)) {
    std::ranges::copy(attentions_of_layers(reference->spec, reference->plan, most_tokens),
                      std::back_inserter(uses));
  }
  if (const std::optional<VisionSpec>& vision = plan.model.spec.vision) {
    const int64_t N = vision->num_heads;
    uses.push_back({plain_attention(N, N, vision->hidden_size / N), kLeastForCudnn});
  }
  return uses;
}

/// Measures the gemms of experts on this rank's GPU: gemms_of_library().
std::string measured(const std::vector<UsedGemm>& gemms, int gpu, at::Device device) {
  const bool are_grouped = grouped::have_kernels(at::device(device).dtype(at::kBFloat16));
  if (!library_groups_gemms(cuda::capability_or_0(gpu)) || !are_grouped) {
    return std::string(gemms.size(), '0');
  }
  return gemms_of_library(gemms,
                          [&](const UsedGemm& gemm) { return grouped::time_gemm(gemm, device); });
}

/// Lets at::_grouped_mm compute the gemms of experts that it computes faster on all ranks. `wins`:
/// of this rank. Collective.
void choose_gemms(const std::vector<UsedGemm>& gemms, const std::string& wins, const Group& world,
                  const Events& events) {
  std::vector<ExpertGemm> chosen = agreed_gemms(gemms, wins, world);
  if (!chosen.empty()) {
    events.say(fmt::format(
        "at::_grouped_mm computes {} of {} kinds of gemms of experts, which it computes "
        "faster on this GPU than Longspan's kernel.",
        chosen.size(), gemms.size()));
  }
  grouped::let_library_multiply(std::move(chosen));
}

}  // namespace

KernelUses kernel_uses(const Config& config) {
  const bool in_bf16 = computes_in_bf16(config.model, config.optimization);
  return {.in_bf16 = in_bf16,
          .casts_experts = in_bf16 && !config.model.pure_bf16 && !trains_adapter(config.method),
          .most_tokens = config.data.cutoff_len};
}

void load_kernels(const RunPlan& plan, const KernelUses& uses, Workers& workers,
                  const Events& events) {
  grouped::let_library_multiply({});  // an earlier session of this process may have chosen some
  if (!plan.device.cuda()) return;
  std::vector<UsedGemm> gemms;
  std::string wins;
  all_or_none_patiently(workers.world(), workers.notices(), [&] {
    if (load_cuda().replacement_kernels != nullptr) return;  // nothing is compiled or loaded
    cuda::load_all_kernels(plan.own_gpu());
    if (!uses.in_bf16) return;  // ATen's operators compute attention
    load_attention(block_kernel_of(plan.device), device_of(plan.device, plan.own_gpu()),
                   at::kBFloat16, attentions_of_run(plan, uses.most_tokens));
    // Only casts of a pass lie side by side. A deterministic run uses the same kernels everywhere.
    if (!uses.casts_experts || gpu_numbers().deterministic) return;
    const int64_t ranks = plan.of_longest_rows().sequence_size;
    gemms = gemms_of_experts(plan.model.spec, plan.parallel.expert_parallel_size,
                             (uses.most_tokens + ranks - 1) / ranks);
    wins = measured(gemms, plan.own_gpu(), device_of(plan.device, plan.own_gpu()));
  });
  choose_gemms(gemms, wins, workers.world(), events);
  say_warnings(workers.world(), events);
}

}  // namespace longspan
