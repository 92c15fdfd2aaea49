// Reduces the gradients of all ranks to the gradient of the global loss.
#pragma once

#include <cstdint>
#include <vector>

#include "longspan/comm/group.h"
#include "longspan/parameters/named_tensor.h"

namespace longspan {

/// Sums every parameter's gradient over `world`, in place. Each rank holds the gradient of its
/// contribution to the global loss, so the sum is the gradient of the global loss, without
/// averaging. A rank without rows contributes zeros. Small gradients are concatenated in buckets of
/// `bucket_bytes`; each large gradient is reduced separately. All reductions run concurrently.
void sum_gradients(const std::vector<NamedTensor>& parameters, const Group& world,
                   int64_t bucket_bytes = int64_t{4} << 20);

}  // namespace longspan
