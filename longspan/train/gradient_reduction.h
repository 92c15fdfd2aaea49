// Gradients of all ranks -> the gradient of the global loss.
#pragma once

#include <cstdint>
#include <vector>

#include "longspan/comm/group.h"
#include "longspan/parameters/named_tensor.h"

namespace longspan {

/// Sums every parameter's gradient over `world`, in place. Each rank holds d(global loss) / d(its
/// own contribution), so the sum is the gradient; nothing is averaged. A rank that had no rows
/// takes part with zeros. Small gradients travel together in buckets of `bucket_bytes`, large ones
/// as they are; all are in flight at once.
void sum_gradients(const std::vector<NamedTensor>& parameters, const Group& world,
                   int64_t bucket_bytes = int64_t{4} << 20);

}  // namespace longspan
