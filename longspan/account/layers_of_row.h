// The kinds of a model's layers, with what they hold of a row. No torch.
#pragma once

#include <cstdint>
#include <vector>

#include "longspan/account/memory_model.h"
#include "longspan/account/run_account.h"

namespace longspan {

/// `element_bytes`: of the dtype of computation. `cuda`: on a CUDA GPU.
std::vector<MemoryFacts::Layers> layers_of_row(const ModelSpec& model, const ParallelPlan& plan,
                                               const RowLengths& row, int64_t element_bytes,
                                               bool cuda);

}  // namespace longspan
