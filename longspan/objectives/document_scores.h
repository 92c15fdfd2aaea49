// The model's scores of a row's documents: the only input of preference losses. D: documents of the
// row, T: this process's tokens.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>

#include "longspan/models/decoder.h"
#include "longspan/rows/batch.h"

namespace longspan {

/// Sums a tensor over the processes that share a row, with the identity as the backward. With one
/// process, the identity.
using SumOver = std::function<at::Tensor(const at::Tensor&)>;

/// Returns the sum of log p over the labels of each document, [D] fp64, the same on every process
/// that shares the row. Each process gets the gradient of its own labels. The sums are in fp64
/// because preference losses compare small differences of large sums.
at::Tensor document_logprobs(Decoder& model, const Batch& local, int64_t num_documents,
                             const SumOver& sum_over);

/// Returns the number of labels in each document of a whole row, [D] fp64.
at::Tensor document_label_counts(const Batch& row, int64_t num_documents);

/// Returns the row with a single label in each document, at its last token. Used to query the model
/// at the last tokens.
Batch with_labels_at_ends(Batch row, int64_t num_documents);

/// The linear layer that makes a value of a hidden state. `dropout`: probability of dropping an
/// element of the layer's input while the model has a dropout seed (in training); the choice
/// depends on token and column.
struct ValueHead {
  at::Tensor weight_1D, bias_1;
  double dropout = 0;
};

/// Returns head(hidden state) at the label of each document, [D] fp64. Every document must have one
/// label on one of the processes (with_labels_at_ends).
at::Tensor document_values(Decoder& model, const ValueHead& head, const Batch& local,
                           int64_t num_documents, const SumOver& sum_over);

}  // namespace longspan
