// Device memory in the phases of a training step, in addition to constant memory. The backward
// allocates gradients while it frees activations, so the peak of gradients and the peak of
// activations do not coincide. No torch.
#pragma once

#include <cstdint>

#include "longspan/account/memory_model.h"

namespace longspan {

/// The accumulation of gradients: sharding and place of the sums.
struct GradientSums {
  int64_t ranks = 1;         ///< ranks that shard the sums of a unit after its backward
  bool at_once = false;      ///< the backward shards the sums (ZeRO 2 and 3)
  bool on_host = false;      ///< this rank's share of the sums lives on the host
  int64_t device_bytes = 0;  ///< bytes of all sums
};

/// Returns the bytes of gradients that exist in addition to their sums during a unit's backward.
/// `unit`: gradient bytes of the unit. `before`: gradient bytes of the previous unit of the
/// backward. `before_that`: gradient bytes of the unit before the previous unit. The reductions of
/// these two units may still be running.
int64_t gradients_under_way(const GradientSums& sums, bool cuda, int64_t unit, int64_t before,
                            int64_t before_that);

/// Returns the bytes of temporary GPU memory that a reduce-scatter of `bytes` bytes of gradients
/// needs.
int64_t bytes_under_reduction(int64_t bytes);

/// Returns the peak in bytes of a pass of facts.reference, without its parameters between uses; 0
/// without a reference.
int64_t reference_pass_bytes(const MemoryFacts& facts);

/// Returns the peak in bytes of gathered parameters, gradients, and saved, kept and temporary
/// tensors; 0 if `facts` has no units.
int64_t step_peak_bytes(const MemoryFacts& facts, const GradientSums& sums);

}  // namespace longspan
