// The loss of an evaluation set.
#pragma once

#include <vector>

#include "longspan/comm/mesh.h"
#include "longspan/data/batch.h"
#include "longspan/models/decoder.h"
#include "longspan/sequence_parallel/sequence_parallel.h"
#include "longspan/train/training_log.h"

namespace longspan {

/// Sum of -log p over all labels of `samples` / number of labels, whatever the batch size and
/// however many ranks. Every rank holds all samples; data-parallel groups share them out.
/// Collective over mesh.world.
EvaluationResult evaluate(Decoder& model, const SequenceParallel& attention, const Mesh& mesh,
                          const std::vector<Sample>& samples, int64_t rows_per_batch,
                          at::Device device);

}  // namespace longspan
