// Cuts a row at its forks, where a recurrence does not continue the token before. T: tokens of the
// row, S: tokens of a stretch, P: tokens of a convolution's window, J: channels, N, K, V: as in
// kernels/gated_delta_rule.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

#include "longspan/attention/recurrent_memory.h"
#include "longspan/rows/packing.h"

namespace longspan {

struct StretchResult {
  at::Tensor out_SNV;
  CarriedStates after;  // the states after the stretch's last token
};

/// A function over a stretch of consecutive tokens. `parts_S`: its part of each input. `packing`:
/// its documents. `before`: the states that its first document continues.
using Stretch = std::function<StretchResult(const std::vector<at::Tensor>& parts_S,
                                            const Packing& packing, const CarriedStates& before)>;

/// Returns the stretches' outputs, in the row's order. A row without forks is one stretch. Both
/// branches of a forked document continue the end of its prompt. Differentiable where `stretch` is.
at::Tensor over_stretches(const std::vector<at::Tensor>& inputs_T, const Packing& packing,
                          const Stretch& stretch);

/// The same for a row whose documents continue from the layer's states in `memory`, which it
/// replaces by the states after them. Without forks and without gradients.
at::Tensor over_remembered(const std::vector<at::Tensor>& inputs_T, const Packing& packing,
                           RecurrentMemory& memory, const Stretch& stretch);

/// Returns the last `size` rows of `before` (which may be undefined) followed by x, or as many as
/// there are.
at::Tensor last_rows(const at::Tensor& x_SJ, const at::Tensor& before_PJ, int64_t size);

}  // namespace longspan
