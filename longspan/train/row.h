// Samples -> a row -> what this rank holds of it.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "longspan/data/batch.h"
#include "longspan/sequence_parallel/sequence_parallel.h"

namespace longspan {

/// collate() of the samples with these indices.
Batch collate_rows(const std::vector<Sample>& samples, const std::vector<int64_t>& indices);

/// This rank's share of a row in the order that its attention asks for, on its device.
Batch local_share(const Batch& row, const SequenceParallel& attention, at::Device device);

}  // namespace longspan
