// What a model eats: one packed row, whole or one rank's share of it.
// T: tokens of this (share of a) row.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "longspan/data/packing.h"
#include "longspan/data/token_order.h"

namespace longspan {

/// Label of a token that is not trained.
inline constexpr int64_t kIgnoreLabel = -100;

/// One sample after tokenization; labels are NOT shifted: labels[i] is input_ids[i] or
/// kIgnoreLabel.
struct Sample {
  std::vector<int32_t> input_ids;
  std::vector<int32_t> labels;
};

/// A packed row. labels_T is already shifted left inside each document: labels_T[i] is the token
/// that position i predicts, kIgnoreLabel at the last token of a document. positions_T restarts at
/// 0 in each document; those of a forked one's second branch go on from its prompt. `packing`
/// always describes the WHOLE row as attention sees it (padding documents included), also when the
/// tensors hold one rank's share. documents_T[i] is the number, from 0, of the sample that token i
/// belongs to, -1 where it is padding. places_T[i] is the place of token i in its document, where
/// positions restart inside of documents; elsewhere it is undefined, and positions_T says the same.
struct Batch {
  at::Tensor tokens_T;     // int64
  at::Tensor labels_T;     // int64
  at::Tensor positions_T;  // int64
  at::Tensor documents_T;  // int64
  Packing packing;
  at::Tensor places_T = {};  // int64, or undefined
};

/// Samples -> one row with a document each; shifts the labels. Shapes: T = sum of the lengths.
Batch collate(const std::vector<const Sample*>& samples);

/// One rank's share of a row. Padding gets token 0, label kIgnoreLabel, position 0, document -1.
Batch shard(const Batch& row, const TokenOrder& order);

/// A number for each token, [T] int64: unlike any other's of the row, and the same on whichever
/// rank holds the token (made of its document and its place in it).
at::Tensor token_keys(const Batch& batch);

/// Number of labels that are trained in this (share of a) row.
int64_t count_labels(const Batch& batch);

}  // namespace longspan
