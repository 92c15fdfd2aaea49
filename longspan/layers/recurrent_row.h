// Cuts a row at its branches, where a recurrence does not continue from the token before. T: tokens
// of the row, S: tokens of a stretch, P: tokens of a convolution's window, J: channels, N, K, V: as
// in kernels/gated_delta_rule.h.
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

/// A function over a stretch of consecutive tokens. `parts_S`: the stretch's part of each input.
/// `packing`: the stretch's documents. `before`: the states from which the first document
/// continues.
using Stretch = std::function<StretchResult(const std::vector<at::Tensor>& parts_S,
                                            const Packing& packing, const CarriedStates& before)>;

/// Returns the stretches' outputs, in the row's order. A row without branches is one stretch. Each
/// branch continues the end of its parent. Differentiable where `stretch` is.
at::Tensor over_stretches(const std::vector<at::Tensor>& inputs_T, const Packing& packing,
                          const Stretch& stretch);

/// As over_stretches(), for a row whose documents continue from the layer's states in `memory`. The
/// states after the documents replace these states. Without forks and without gradients.
at::Tensor over_remembered(const std::vector<at::Tensor>& inputs_T, const Packing& packing,
                           RecurrentMemory& memory, const Stretch& stretch);

/// Returns the last `size` rows of `before` (which may be undefined) and x, concatenated; fewer
/// rows if both together have fewer.
at::Tensor last_rows(const at::Tensor& x_SJ, const at::Tensor& before_PJ, int64_t size);

}  // namespace longspan
