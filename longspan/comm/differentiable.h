// Collectives with a backward. Rule of the whole program: a rank's gradient is d(global loss) with
// respect to its OWN contribution, and gradients of shared parameters are SUMMED over ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "longspan/comm/group.h"

namespace longspan {

/// Concatenates all ranks' x (equal shapes) along dim 0. The backward sums the gradients that all
/// ranks have for this rank's x.
at::Tensor all_gather(const at::Tensor& x, const Group& group);

/// Sums x over ranks. The backward is the identity: with y = sum_r x_r, every rank's d loss / d x_r
/// is d loss / d y. (Algorithm 2 of the Plug & Play SP paper, in the form that sums parameter
/// gradients.)
at::Tensor sum_over(const at::Tensor& x, const Group& group);

/// Sends the first send_rows[0] rows of x to rank 0, the next to rank 1 and so on; returns the
/// received rows in rank order, recv_rows[i] of rank i. The backward returns the gradients of the
/// rows to their senders. Either every rank or no rank must need the gradient.
at::Tensor all_to_all_rows(const at::Tensor& x, const std::vector<int64_t>& send_rows,
                           const std::vector<int64_t>& recv_rows, const Group& group);

}  // namespace longspan
