// Supervised fine-tuning: token cross-entropy.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "longspan/data/batch.h"
#include "longspan/models/decoder.h"

namespace longspan {

/// This process's contribution to the loss of an optimizer step: sum of -log p over its labels /
/// labels of the whole global batch (all micro-batches, all processes). Summing the contributions
/// gives the loss; so do gradients, which are those of backward() of what is returned, unscaled.
at::Tensor sft_loss(Decoder& model, const Batch& local, int64_t global_label_count);

}  // namespace longspan
