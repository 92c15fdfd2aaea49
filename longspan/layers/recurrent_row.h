// Cuts a row at its forks, where a recurrence continues from another token than the one before.
// T: tokens of the row, S: of a stretch, P: tokens of a convolution's window, J: channels, N, K, V:
// as kernels/gated_delta_rule.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

#include "longspan/attention/recurrent_memory.h"
#include "longspan/data/packing.h"

namespace longspan {

struct StretchResult {
  at::Tensor out_SNV;
  CarriedStates after;  // the stretch's last token
};

/// A stretch of consecutive tokens: its part of each input, its documents, what its first document
/// goes on from.
using Stretch = std::function<StretchResult(const std::vector<at::Tensor>& parts_S,
                                            const Packing& packing, const CarriedStates& before)>;

/// The stretches' outputs, in the row's order. A row without forks is one stretch. Both branches of
/// a forked document go on from the end of what they share. Differentiable where `stretch` is.
at::Tensor over_stretches(const std::vector<at::Tensor>& inputs_T, const Packing& packing,
                          const Stretch& stretch);

/// The same of a row whose documents continue from the states that `memory` holds of the layer; it
/// then holds the states after them. Without forks, and without gradients.
at::Tensor over_remembered(const std::vector<at::Tensor>& inputs_T, const Packing& packing,
                           RecurrentMemory& memory, const Stretch& stretch);

/// The last rows of what x continues, as many as there are, at most `size`: of `before` (which may
/// be undefined) and then of x.
at::Tensor last_rows(const at::Tensor& x_SJ, const at::Tensor& before_PJ, int64_t size);

}  // namespace longspan
