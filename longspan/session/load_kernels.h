// GPU kernels of a session, loaded at its start.
#pragma once

#include <cstdint>

#include "longspan/report/events.h"
#include "longspan/session/run_plan.h"
#include "longspan/session/workers.h"

namespace longspan {

struct Config;

struct KernelUses {
  bool in_bf16 = false;        // computes in bf16
  bool casts_experts = false;  // matrices of experts are held in fp32, and computed in bf16
  int64_t most_tokens = 0;     // of a row
};
KernelUses kernel_uses(const Config& config);

/// Loads the kernels that the plan's model may use on a GPU, before the memory is full. A rank
/// whose kernels cannot be used falls back to ATen's operators now, and rank 0 says which ranks do.
/// Also measures which gemms of experts at::_grouped_mm computes faster on all ranks; such gemms
/// are its own from here on. Throws as all_or_none. Collective.
void load_kernels(const RunPlan& plan, const KernelUses& uses, Workers& workers,
                  const Events& events);

}  // namespace longspan
