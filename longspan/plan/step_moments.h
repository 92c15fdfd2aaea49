// What the device holds at the moments of a training step, beside what is there all the time:
// gradients are made while activations go, so that not all of both are there at once. No torch.
#pragma once

#include <cstdint>

#include "longspan/plan/memory_model.h"

namespace longspan {

/// How gradients are summed, and where.
struct GradientSums {
  int64_t ranks = 1;         ///< that divide the sums, each unit's as soon as its backward is over
  bool at_once = false;      ///< whether they are so divided (ZeRO 2 and 3)
  bool on_host = false;      ///< whether a rank's share of them lies there
  int64_t device_bytes = 0;  ///< of all sums
};

/// Bytes of gradients, beside their sums, in the backward of a unit whose gradients are so large:
/// its own, and of the two units before it what is still on its way.
int64_t gradients_under_way(const GradientSums& sums, bool cuda, int64_t unit, int64_t before,
                            int64_t before_that);

/// Bytes on a GPU, beside them, of gradients of so many bytes while ranks sum them.
int64_t bytes_under_reduction(int64_t bytes);

/// Bytes at the fullest moment: gathered parameters, gradients, what is saved, kept and worked
/// with. Of facts that say nothing of units: 0.
int64_t bytes_of_fullest_moment(const MemoryFacts& facts, const GradientSums& sums);

}  // namespace longspan
