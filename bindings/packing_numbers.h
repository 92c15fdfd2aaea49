// Documents as Python passes them: for each document its length, the number of its segments, and
// for each segment its begin and its parent (Segment in rows/packing.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "longspan/rows/packing.h"

namespace longspan {

/// Throws UserError if the numbers do not describe documents.
Packing packing_of_numbers(at::IntArrayRef numbers);
/// As above, for an int64 tensor on the CPU.
Packing packing_of_numbers(const at::Tensor& numbers);

std::vector<int64_t> numbers_of_packing(const Packing& packing);

}  // namespace longspan
