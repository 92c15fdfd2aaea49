// What a model gives the documents of a row: the one thing that preference losses look at.
// D: documents of the row, T: this process's tokens.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>

#include "longspan/data/batch.h"
#include "longspan/models/decoder.h"

namespace longspan {

/// The sum over the processes that share a row, whose backward is the identity. Alone: the
/// argument.
using SumOver = std::function<at::Tensor(const at::Tensor&)>;

/// Sum of log p over the labels of each document, [D] fp64, the same on every process that shares
/// the row; each one's gradient is that of its own labels. Sums are in fp64, for what preference
/// losses compare are small differences of large sums.
at::Tensor document_logprobs(Decoder& model, const Batch& local, int64_t num_documents,
                             const SumOver& sum_over);

/// Labels of each document of a whole row, [D] fp64.
at::Tensor document_label_counts(const Batch& row, int64_t num_documents);

/// The row with one label in each document, at its last token, so that what the model makes of the
/// last tokens can be asked for by labels.
Batch with_labels_at_ends(Batch row, int64_t num_documents);

/// v_head(hidden state) at the label of each document, [D] fp64: every document has one label on
/// one of the processes (with_labels_at_ends). weight_1D, bias_1: the value head. `dropout`: share
/// of the head's inputs that are dropped where the model has a dropout seed (in training), chosen
/// by token and column.
at::Tensor document_values(Decoder& model, const at::Tensor& weight_1D, const at::Tensor& bias_1,
                           double dropout, const Batch& local, int64_t num_documents,
                           const SumOver& sum_over);

}  // namespace longspan
