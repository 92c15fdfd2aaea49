// Device memory in the phases of a training step, in addition to constant memory. The backward
// allocates gradients while it frees activations, so the peak of gradients and the peak of
// activations do not coincide. No torch.
#pragma once

#include <cstdint>

#include "longspan/account/memory_model.h"

namespace longspan {

/// The accumulation of gradients: sharding and place of the sums.
struct GradientSums {
  int64_t ranks = 1;     ///< ranks that shard the sums of a unit after its backward
  bool at_once = false;  ///< the backward sums units, of each row (ZeRO 2 and 3) or the last row
  /// Bytes of all gradients, if the backward of the last row alone sums them: those of earlier rows
  /// are whole. Otherwise 0.
  int64_t whole_bytes = 0;
  bool on_host = false;  ///< this rank's share of the sums lives on the host
  bool added = false;    ///< the sums of earlier rows exist when a unit's sum is made
  GradientReduction reduction = GradientReduction::kExchange;
  int64_t device_bytes = 0;  ///< bytes of all sums
  int64_t bucket_bytes = 0;  ///< copies of small gradients that are summed whole, under way
  bool widens = false;       ///< whole bf16 gradients are summed in fp32
};

/// Returns the bytes of gradients that exist in addition to their sums during a unit's backward.
/// `unit`: gradient bytes of the unit. `before`: gradient bytes of the previous unit of the
/// backward. `before_that`: gradient bytes of the unit before the previous unit. The reductions of
/// these two units may still be running.
int64_t gradients_under_way(const GradientSums& sums, bool cuda, int64_t unit, int64_t before,
                            int64_t before_that);

/// Returns the bytes of temporary GPU memory that the reduction of `bytes` bytes of gradients over
/// `ranks` ranks needs, without the sums.
int64_t bytes_under_reduction(GradientReduction reduction, int64_t ranks, int64_t bytes);

/// Returns the peak in bytes of a pass of facts.reference, without its parameters between uses; 0
/// without a reference.
int64_t reference_pass_bytes(const MemoryFacts& facts);

/// Returns the peak in bytes of gathered parameters, gradients, and saved, kept and temporary
/// tensors; 0 if `facts` has no units.
int64_t step_peak_bytes(const MemoryFacts& facts, const GradientSums& sums);

}  // namespace longspan
