#include "longspan/session/load_kernels.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "longspan/attention/load_attention.h"
#include "longspan/config/config.h"
#include "longspan/cuda/cuda.h"
#include "longspan/cuda/kernels.h"
#include "longspan/kernels/grouped_library.h"
#include "longspan/liveness/agreement.h"
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
    std::vector<AttentionSpec> specs;
    for (const auto& [spec, count] : attentions_of(plan.model.spec)) specs.push_back(spec);
    if (plan.reference) {
      for (const auto& [spec, count] : attentions_of(*plan.reference)) specs.push_back(spec);
    }
    load_attention(block_kernel_of(plan.device), device_of(plan.device, plan.own_gpu()),
                   at::kBFloat16, specs, uses.most_tokens);
    // Only casts of a pass lie side by side. A deterministic run uses the same kernels everywhere.
    if (!uses.casts_experts || gpu_numbers().deterministic) return;
    gemms = gemms_of_experts(plan.model.spec, plan.parallel.expert_parallel_size, uses.most_tokens);
    wins = measured(gemms, plan.own_gpu(), device_of(plan.device, plan.own_gpu()));
  });
  choose_gemms(gemms, wins, workers.world(), events);
  say_warnings(workers.world(), events);
}

}  // namespace longspan
