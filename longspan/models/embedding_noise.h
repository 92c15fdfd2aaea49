// NEFTune's noise on the embedding (arXiv 2310.05914).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "longspan/rows/batch.h"

namespace longspan {

/// Adds uniform noise of at most alpha / sqrt(tokens of the example x D) to h_TD, in place.
void add_embedding_noise(const at::Tensor& h_TD, const Batch& batch, double alpha, uint64_t seed);

}  // namespace longspan
