// Supervised fine-tuning: token cross-entropy.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "longspan/models/decoder.h"
#include "longspan/rows/batch.h"

namespace longspan {

/// Returns this process's part of the loss of an optimizer step: the sum of -log p over the
/// process's labels, divided by `global_label_count`, the labels of the whole global batch (all
/// micro-batches, all processes). The sum of all parts is the loss; the sum of the parts' gradients
/// is the loss's gradient. `factors`: multiply the terms of the sum; none: 1.
at::Tensor sft_loss(Decoder& model, const Batch& local, int64_t global_label_count,
                    const LossFactors& factors = {});

/// LossFactors of dynamic fine-tuning (DFT, arXiv 2508.05629): the probability of each label.
at::Tensor dft_factors(const LossChunk& chunk);

/// LossFactors of entropy-adaptive fine-tuning (EAFT, arXiv 2601.02151), as in LLaMA-Factory: (H /
/// 3)^alpha for the entropy H in nats of the softmax over the 20 largest logits.
at::Tensor eaft_factors(const LossChunk& chunk, double alpha);

/// As sft_loss(), of anchored supervised fine-tuning (ASFT, arXiv 2509.23753), as in LLaMA-Factory:
/// the loss of DFT plus `alpha` KL(teacher || model) at each label. `visit`: of
/// Decoder::logprobs_and_divergences().
at::Tensor asft_loss(Decoder& model, const Batch& local, const TeacherHead& teacher, double alpha,
                     int64_t global_label_count, const LossFactors& visit = {});

}  // namespace longspan
