// Numbers of a step from several ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "longspan/comm/group.h"

namespace longspan {

/// Returns the rows of all ranks of `group`, concatenated in the order of the ranks. `own`: [N,
/// ...] on the group's device; N may differ among ranks. `counting`: a group of the same ranks,
/// which exchanges the counts N on `counts_on`. Collective.
at::Tensor gathered_rows(const at::Tensor& own, const Group& group, const Group& counting,
                         at::Device counts_on);

/// The same for numbers. `device`: of the group's tensors.
std::vector<double> values_of(const Group& group, const std::vector<double>& own,
                              at::Device device);

}  // namespace longspan
